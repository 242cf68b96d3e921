"""Simulated engines and gateways: real prompts, simulated time, real calls to the service.

The parts, from the prompts to the picture: ``trace`` and ``generate`` bring prompts, ``blocks`` names their blocks,
``cache`` and ``engine`` are an inference engine, ``routing`` and ``gateway`` choose one, ``report`` tells the
service what an engine stored and dropped, ``simulate`` plays it all, ``figures`` and ``plot`` show what came out,
``launch`` starts servers and ``demo`` puts these together.
"""
