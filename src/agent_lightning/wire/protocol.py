"""The HTTP words that client and server share: header names, paths, states. Standard library only.

Keys travel as `Authorization: Bearer KEY`. A rollout key ("alr-...") names its attempt by itself, so a call needs no
other id than its own. Worker, admin and read keys are "alw-...", "ala-..." and "alo-...". On loopback a server without
keys takes none of these.

POST /v1/chat/completions        rollout key, scope calls. OpenAI's dialect. Extra headers below.
POST /v1/completions             the same; a prompt of text or token ids
POST /v1/responses               the same; GET /v1/responses/ID gives an answer again
POST /v1/messages                the same in Anthropic's; its key may also come as `x-api-key`
POST /v1/messages/count_tokens   the same; counts the prompt and records nothing
GET  /v1/models                  any key
POST /api/v1/claims              worker key. {"worker", "run_id"?, "wait_seconds"?}
                                 -> 200 claim | 204 nothing to do yet | 410 the run is over: stop claiming
                                 | 409 another run is served here
POST /api/v1/live                worker key. {"rollout_id", "worker", "input"?} -> 200 claim
POST /api/v1/attempts/ID/heartbeat   rollout key. {} -> {"lease_until"} | 410
POST /api/v1/attempts/ID/end     rollout key. {"outcome", "detail"?, "result"?, "rewards"?: [reward]} -> {"status"}
POST /api/v1/rollouts/ID/rewards rollout key, scope rewards. {"rewards": [reward]} -> {"stored", "stale"}
POST /v1/traces                  rollout or worker key. OTLP as JSON or protobuf, gzip or deflate allowed
POST /api/v1/rollouts            admin key. {"run_id", "tasks": [...], "mode"} -> {"queued"}
GET  /api/v1/rollouts/ID, .../ID/rewards, /runs, /runs/ID/events, /tasks, /policies, /metrics   admin or read key
GET  /metrics                    admin or read key, for Prometheus
GET  /healthz, /readyz, /openapi.json   anybody

claim:  {"rollout_id", "attempt_id", "run_id", "number", "mode", "key", "lease_seconds", "deadline_seconds",
         "task": {"id", "input", "split", "meta"}, "sibling", "group_id",
         "component", "max_step_timeout", "retry_strategy"}   the server's settings: a worker's own win over them
reward: {"id", "name", "value", "target", "target_id", "source", "created_at"}
Errors: {"error": {"message", "type", "param", "code"}} everywhere, OpenAI's shape; in Anthropic's dialect its own.
"""

from __future__ import annotations

CALL_ID = "x-lightning-call-id"  # minted by the client once a logical call, at most 64 characters
COMPONENT = "x-lightning-component"  # path of names, percent-encoded, joined by "/"
PARENT_SPAN = "x-lightning-parent-span"  # 16 hex digits; calls under one parent that overlap share a step index
DEADLINE = "x-lightning-deadline-ms"  # what is left of max_step_timeout
ROLLOUT = "x-lightning-rollout"  # in answers: rollout id
VERSION = "x-lightning-version"  # in answers: policy version that began the answer
LOAD = "x-lightning-load"  # in answers: how busy the server is, 0 to 1; under "auto" clients record less of it
SHOULD_RETRY = "x-should-retry"  # in answers: "false" stops the SDK's own retries
RETRY_COUNT = "x-stainless-retry-count"  # set by the OpenAI and Anthropic SDKs

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
MODELS = "/v1/models"
TRACES = "/v1/traces"
CLAIMS = "/api/v1/claims"
LIVE = "/api/v1/live"
ATTEMPTS = "/api/v1/attempts"
ROLLOUTS = "/api/v1/rollouts"
RUNS = "/api/v1/runs"
