"""An offline run as wandb's own client writes it (wandb 0.16.6): `wandb_run.wandb`."""

import pathlib
import shutil
import tempfile

import wandb

here = pathlib.Path(__file__).parent
with tempfile.TemporaryDirectory() as folder:
    settings = wandb.Settings(_disable_stats=True, _disable_meta=True, disable_git=True, host="host")
    run = wandb.init(project="golden", name="drafter", id="golden00", mode="offline", dir=folder, settings=settings,
                     config={"train.steps": 3, "text": "é" * 6000})
    for step in range(3):
        run.log({"train/loss": 1 / (step + 1)}, step=step * 10)
    run.summary["tau"] = 3.5
    run.finish()
    [made] = pathlib.Path(folder).glob("wandb/offline-run-*/run-golden00.wandb")
    shutil.copy(made, here / "wandb_run.wandb")
