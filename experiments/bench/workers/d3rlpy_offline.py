"""TD3+BC and IQL from a dataset with d3rlpy 2.8.1."""

# It runs in an environment of its own, so a type checker finds none of it here.
# pyright: reportMissingImports=false

from __future__ import annotations

import offlining


def main() -> None:
    arguments = offlining.parse()
    import d3rlpy
    import numpy as np
    from d3rlpy.models.encoders import VectorEncoderFactory
    from d3rlpy.preprocessing import MinMaxActionScaler, StandardObservationScaler

    shared, data = arguments.config, np.load(arguments.data)
    d3rlpy.seed(arguments.seed)
    encoder = VectorEncoderFactory(shared["hidden"])
    settings = {
        "batch_size": shared["batch_size"],
        "gamma": shared["discount"],
        "tau": shared["rate"],
        "actor_learning_rate": shared["learning_rate"],
        "critic_learning_rate": shared["learning_rate"],
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": encoder,
        "observation_scaler": StandardObservationScaler(),
        "action_scaler": MinMaxActionScaler(minimum=np.array([-2.0]), maximum=np.array([2.0])),
    }
    if arguments.algorithm == "td3_bc":
        config = d3rlpy.algos.TD3PlusBCConfig(**settings, alpha=shared["alpha"])
    else:
        config = d3rlpy.algos.IQLConfig(
            **settings,
            value_encoder_factory=encoder,
            expectile=shared["expectile"],
            weight_temp=1 / shared["temperature"],
        )
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    dataset = d3rlpy.dataset.MDPDataset(*(data[name].astype(np.float32) for name in names))
    learner = config.create(device="cpu:0")
    learner.build_with_dataset(dataset)

    def work():
        learner.fit(
            dataset,
            n_steps=shared["steps"],
            n_steps_per_epoch=shared["steps"],
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
            show_progress=False,
        )
        return learner.predict

    offlining.finish(arguments, work)


if __name__ == "__main__":
    main()
