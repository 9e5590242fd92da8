"""Bad input gets one sentence and exit code 2, and leaves no run folder behind."""

import pytest

from jaxrl.commands import command_line
from jaxrl.commands import evaluate as evaluate_script
from tests.runtime import tiny

TRAIN = {
    "--agent.lerning-rate 1": "Unknown option '--agent.lerning-rate'; did you mean "
    "'--agent.optimizer.learning-rate'?",
    "--learnin-rate 1": "Unknown option '--learnin-rate'; did you mean "
    "'--agent.optimizer.learning-rate'?",
    "--sede 1": "did you mean '--seed'?",
    "--no-seeds": "Unknown option '--no-seeds'",
    "--no-quiet yes": "Unknown option '--no-quiet'",
    "--seeds four": "seeds is 'four'; it must be a whole number",
    "--seeds": "--seeds needs one value, got none",
    "--seeds 1 2": "--seeds needs one value, got 1 2",
    "--seeds 1 --seeds 2": "--seeds is given twice",
    "--seeds 0": "seeds is 0; it must be at least 1",
    "--seed -1": "seed is -1; it must be at least 0",
    "--steps 0": "steps is 0; it must be at least 1",
    "--quiet maybe": "quiet is 'maybe'; it must be true or false",
    "--agent.learning-rate nan": "agent.optimizer.learning_rate is 'nan'; it must be a number",
    "--agent.minibatches 5": "do not divide into minibatches=5",
    "--agent.num-envs 0": "agent.rollouts.num_envs is 0; it must be at least 1.",
    "--agent.reset-pool 100000000000": "agent.rollouts.reset_pool is 100000000000; it must be at "
    "most 2147483647.",
    "--env tests.runtime.environments:wrong_shape": "observation",
    "--agent.num-envs 1e12": "agent.rollouts.num_envs is 1000000000000; it must be at "
    "most 16777216.",
    "--agent.discount 1.5": "agent.discount is 1.5; it must be between 0 and 1.",
    "--agent.learning-rate -1e-3": "agent.optimizer.learning_rate is -0.001; it must be at "
    "least 0.",
    "--agent.learning-rate .inf": "agent.optimizer.learning_rate is inf; it must be finite.",
    "--agent.learning-rate 1e300": "agent.optimizer.learning_rate is 1e+300; it must be a "
    "number that a "
    "32-bit float holds.",
    "--agent.hidden": "agent.torso.hidden is []; it must have at least one entry.",
    "--algorithm a2c": "The settings under agent are for 'ppo', and 'a2c' has other ones",
    "--agent.activation rely": "did you mean 'relu'?",
    "--agent.optimizer.name adan": "did you mean 'adam'?",
    "--agent.hidden 8,x": "agent.torso.hidden is 'x'; it must be a whole number",
    "--agent.shuffle exactly": "did you mean 'exact'?",
    "--algorithm pppo": "did you mean 'ppo'?",
    "--algorithm tests.runtime.environments:endless": "must be a function build(env, config",
    "--env cartpool": "did you mean 'cartpole'?",
    "--algorithm timeit:timeit": "must be a function build(env, config: Config) -> Algorithm",
    "--env no.such.module:env": "cannot be imported",
    "--env timeit:timeit --env-params number=1": "not declared to return an Environment",
    "--env tests.runtime.environments:odd_actions": "cannot act in",
    "--env-params forse=1": "did you mean 'force'?",
    "--env-params force": "--env-params needs pairs such as force=20",
    "--env-params force=x": "'force' of 'cartpole' is 'x'; it must be a number",
    "--env-params force=inf": "is inf; it must be a finite 32-bit number, such as 10.",
    "--env-params force=1e300": "0160; it must be a finite 32-bit number, such as 10.",
    "--generator pgc": "did you mean 'pcg'?",
    "--devices 3": "does not divide into num_shards=3",
    "--devices 64 --agent.num-shards 64 --agent.num-envs 64": "batch=64 needs 64 devices, but ",
    "--mesh sed=2": "did you mean 'seeds'?",
    "--mesh batch=0": "mesh has batch=0; the number of devices must be at least 1",
    "--mesh batch=two": "mesh.batch is 'two'; it must be a whole number",
    "--mesh seeds=2,batch=2 --devices 2": "devices is 2 and mesh has 4 devices",
    "--mesh seeds=2 --seeds 3": "seeds=2 does not divide the 3 members of the run",
    "--mesh model=2": "has no parameters that model=2 can split; this axis is for transformers",
    "--evaluate-env pendulum": "cannot act in 'pendulum'",
    "--evaluate-env tests.runtime.environments:endless": "as --wrappers '[{time_limit: "
    "{max_steps: 1000}}]', or train with --evaluate-every -1.",
    "--evaluate-env pendulum --plan": "cannot act in 'pendulum'",
    "--host.staleness 1": "host.staleness is 1, but 'cartpole' is compiled and does not run on",
    "--host.actors 2 --plan": "host.actors is 2, but 'cartpole' is compiled and does not run on",
    "--evaluate-episodes 0": "evaluate_episodes is 0; it must be at least 1",
    "--resume {}": "is not a run folder: it has no config.yaml",
    "--resume {}/nowhere": "There is no run folder",
    "--fork {}/nowhere": "There is no run folder",
    "--warm-start {}/nowhere": "There is no run folder",
    "--out {}/tiny.yaml": "cannot be written",
    "--out {}/tiny.yaml/below": "cannot be written",
    "--name ../../escape": "name is '../../escape'; it must be the name of a folder in out",
    "--name {}/elsewhere": "it must be the name of a folder in out",
    "--name a/b": "it must be the name of a folder in out",
    "--name ..": "it must be the name of a folder in out",
    "--name .hidden": "it must be the name of a folder in out",
    "--quiet more.yaml": "Give one configuration file, not ",
    "--seeds 2 more.yaml": "Give one configuration file, not ",
    "more.yaml": "Give one configuration file",
}
# Without a file, since its settings would be for another algorithm.
ALGORITHMS = {
    "--algorithm dqn --env pendulum": "dqn cannot act in Box",
    "--algorithm evolution_strategy --agent.population 6 --devices 4": "batch=4 splits the batch "
    "over 4 devices, which does not divide its 6 shards (num_shards, or the size of the population",
    "--algorithm dreamer4_imagination --env catch": "cannot begin with new weights, since it "
    "continues dreamer4_world_model",
}
SWEEP = {
    "": "Say what to vary, such as --vary agent.learning-rate=1e-4,1e-3",
    "--vary agent.clip=0.1,0.2 --plan": "--plan is for one run",
    "--vary agent.clip": "needs values",
    "--vary agent.klip=1,2": "did you mean 'agent.clip'?",
    "--vary agent.hidden=uniform(1,2)": "agent.torso.hidden is part of the program, so it",
    "--vary agent.hidden=8/0": "agent.torso.hidden is [0]; each entry must be at least 1",
    "--vary agent.clip=uniform(0.1,0.2)": "is varied over a range; add --samples N",
    "--vary agent.clip=0.1,0.2 --samples 3": "--samples needs a range",
    "--vary agent.clip=1,2 --samples x": "samples is 'x'; it must be a whole number",
    "--vary agent.clip=1,2 --halving": "--halving needs one value, got none",
    "--vary agent.clip=1,2 --chunk -1": "chunk is -1; it must be at least 0",
    "--vary agent.clip=1,2 --halving 1": "halving is 1; it must be at least 2",
    "--vary agent.clip=1,2 --halving 3": "--halving 3 does not cut 2 points and 640 steps",
    "--vary agent.clip=1,2 --halving 2 --steps 32": "one of which is shorter than an update of 32",
    "--vary agent.clip=1,2 --halving 2 --pbt 64": "--halving and --pbt cannot be combined",
    "--vary agent.clip=1,2 --pbt 640": "--pbt 640 does not cut 2 points and 640 steps",
    "--vary agent.clip=1 --pbt 64": "--pbt needs at least 2 members of one program",
    "--vary agent.hidden=4/8 --seeds 2 --pbt 64": "that differ in a hyperparameter",
    "--vary agent.clip=1,2 --pbt 64 --chunk 1": "but only 1 of them can be trained at once",
    "--env catch --vary env-params.size=3,4": "Unknown parameter of 'catch' 'size'",
    "--vary agent.clip=0.1,x": "agent.clip is 'x'; it must be a number",
    "--vary agent.clip=0.1,nan": "agent.clip is 'nan'; it must be a number",
    "--vary agent.discount=0.9,1.5": "agent.discount is 1.5; it must be between 0 and 1.",
    "--vary agent.clip=0.1,": "agent.clip is ''; it must be a number",
    "--vary agent.clip=1 agent.clip=2": "agent.clip is varied twice",
    "--vary agent.clip=0.1,0.1": "agent.clip is given the same value twice",
    "--vary agent.clip=1,2 --evaluate-every -1": "a sweep compares evaluations",
    "--vary agent.clip=1,2 --seeds 0": "seeds is 0",
}
EVALUATE = {
    "": "Got 0 names (none); usage: jaxrl evaluate RUN",
    "a b": "Got 2 names (a, b); usage: jaxrl evaluate RUN",
    "nowhere": "There is no run folder 'nowhere'",
    "{run} --episodes 0": "episodes is 0; it must be at least 1",
    "{run} --member 1": "member is 1; it must be 0 to 0",
    "{run} --member -1": "member is -1; it must be at least 0",
    "{run} --video jpg": "Unknown value of --video 'jpg'; it may be one of: gif, mp4, none, png",
    "--episodes 3 no/where": "There is no run folder 'no/where'",
    "{run} --env pendulum": "cannot act in 'pendulum'",
    "{run} --env tests.runtime.environments:endless": "has no time limit; set max_steps",
    "{run} --out {run}/config.yaml": "cannot be written",
    "{run} --episode 3": "did you mean '--episodes'?",
}


def check(code, said, capsys):
    error = capsys.readouterr().err
    assert code == 2, error
    lines = [line for line in error.splitlines() if not line.startswith(("Starting", "Compiling"))]
    assert len(lines) == 1 and lines[0].startswith("error: "), error
    assert said in lines[0]


@pytest.mark.parametrize("words", TRAIN)
def test_train(words, tmp_path, capsys):
    argv = words.format(tmp_path).split()
    check(tiny.call("train", tmp_path, *argv), TRAIN[words], capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("words", ALGORITHMS)
def test_another_algorithm(words, tmp_path, capsys):
    argv = ["--out", str(tmp_path), *words.split()]
    check(tiny.command_line.call(tiny.train_script.main, argv), ALGORITHMS[words], capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", SWEEP)
def test_sweep(words, tmp_path, capsys):
    check(tiny.call("sweep", tmp_path, *words.split()), SWEEP[words], capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("words", EVALUATE)
def test_evaluate(words, finished_run, capsys):
    before = sorted(finished_run.rglob("*"))
    argv = words.format(run=finished_run).split()
    check(command_line.call(evaluate_script.main, argv), EVALUATE[words], capsys)
    assert sorted(finished_run.rglob("*")) == before


def test_a_file_that_is_not_there(capsys):
    check(
        command_line.call(tiny.train_script.main, ["no.yaml"]), "There is no file 'no.yaml'", capsys
    )


def test_a_name_that_is_taken(finished_run, capsys):
    before = (finished_run / "metrics.jsonl").read_bytes()
    code = tiny.call("train", finished_run.parent, "--name", "run")
    check(code, "already exists; choose another name, or continue it with jaxrl resume", capsys)
    assert (finished_run / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("train", ["--seeds", "0"], "error: seeds is 0; it must be at least 1."),
        ("evaluate", ["nowhere"], "error: There is no run folder 'nowhere'."),
    ],
)
def test_in_a_real_process(script, words, said, tmp_path):
    run = tiny.process(script, *words)
    out, error = run.communicate()
    assert (run.returncode, out, error) == (2, "", said + "\n")
