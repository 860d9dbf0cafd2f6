"""The control plane: learns from engines' frames, decides draft and K, publishes policies. Never touches a token.

`cells` and `ledger` turn cumulative frames into differences, `store` keeps everything in Redis, `tuner` joins ledger
and learner for one pool, `loop` runs it, `app` and `api` show it over HTTP, `learner` holds the mathematics.
"""
