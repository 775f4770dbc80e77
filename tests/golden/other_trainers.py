"""Writes the names of all settings of other trainers, as their published packages have them: `other_trainers/NAME.txt`.

    pip download --no-deps specforge==0.2.0 speculators==0.9.0 hs_connectors==0.9.0 nvidia-modelopt==0.47.0 nemo-automodel==0.7.0
    python other_trainers.py FOLDER_OF_THE_WHEELS

TorchSpec has no package: `other_trainers/torchspec.txt` lists the fields of `torchspec/config/train_config.py` of its repository
(lightseekorg/TorchSpec, commit 0283fdff).
"""

import ast
import re
import sys
import zipfile
from pathlib import Path

WHEELS = Path(sys.argv[1])
OUT = Path(__file__).with_suffix("")


def source(wheel, name):
    (path,) = WHEELS.glob(f"{wheel}-*.whl")
    return zipfile.ZipFile(path).read(name).decode()


def fields(text):
    """The annotated fields of each class."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                item.target.id: ast.unparse(item.annotation)
                for item in node.body
                if isinstance(item, ast.AnnAssign) and not item.target.id.startswith("_")
            }
    return found


def joined(classes, name, prefix=""):
    """The keys of a class with those of the classes that its fields are."""
    keys = []
    for field, kind in classes[name].items():
        inner = [word for word in re.findall(r"\w+", kind) if word in classes]
        if inner and not kind.startswith(("List", "list")):
            keys += joined(classes, inner[0], f"{prefix}{field}.")
        else:
            keys.append(prefix + field)
    return keys


def write(name, keys):
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.txt").write_text("".join(f"{key}\n" for key in sorted(set(keys))))


def specforge():
    write("specforge", joined(fields(source("specforge", "specforge/config/schema.py")), "Config"))


def speculators():
    classes = fields(source("speculators", "speculators/train/config/schema.py"))
    keys = [key for name, table in classes.items() if name.endswith("Args") for key in table]
    groups = {f"{name.removesuffix('Args').lower()}" for name in classes}
    keys += [key for key in classes["TrainConfig"] if key not in groups and key not in ("argv", "provenance")]
    for name, prefix in (("prepare_data", "prepare_data"), ("regenerate_responses", "regenerate")):
        module = ast.parse(source("speculators", f"speculators/cli/{name}.py"))
        (command,) = [node for node in module.body if getattr(node, "name", "") == name]
        keys += [f"{prefix}.{argument.arg}" for argument in command.args.args]
    transfer = source("hs_connectors", "hs_connectors/transfer.py")
    training = transfer.replace('"--mooncake-writer-threads"', "")
    keys += [flag.replace("-", "_") for flag in re.findall(r'"--([a-z-]+)"', training)]
    write("speculators", keys)


def modelopt():
    config = fields(source("nvidia_modelopt", "modelopt/torch/speculative/config.py"))
    arguments = fields(source("nvidia_modelopt", "modelopt/torch/speculative/plugins/hf_training_args.py"))
    sections = {
        "model": arguments["ModelArguments"],
        "data": arguments["DataArguments"],
        "training": arguments["TrainingArguments"],
        "eagle": config["EagleConfig"],
        "dflash": config["DFlashConfig"],
        "medusa": config["MedusaConfig"],
    }
    tables = ("architecture_config", "export_rope_scaling")
    keys = [f"{section}.{key}" for section, table in sections.items() for key in table if not key.endswith(tables)]
    defaults = source("nvidia_modelopt", "modelopt/torch/speculative/eagle/default_config.py")
    for node in ast.parse(defaults).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "default_eagle_config":
            for key, value in ast.literal_eval(node.value).items():
                names = [f"{key}.{inner}" for inner in value] if isinstance(value, dict) else [key]
                keys += [f"eagle.eagle_architecture_config.{name}" for name in names]
    write("modelopt", keys)


def nemo():
    recipes = ["eagle1", "eagle3", "dflash", "dflash2", "dspark", "jetspec"]
    texts = [source("nemo_automodel", f"nemo_automodel/recipes/llm/train_{name}.py") for name in recipes]
    texts.append(source("nemo_automodel", "nemo_automodel/recipes/llm/peagle_recipe.py"))
    keys = []
    for text in texts:
        keys += [f"recipe_args.{key}" for key in re.findall(r'recipe_cfg\.get\(\s*"(\w+)"', text)]
        keys += [f"recipe_args.{key}" for key in re.findall(r"recipe_cfg\.(\w+)\b(?!\()", text)]
        keys += [f"optimizer.{key}" for key in re.findall(r'opt_cfg\.get\(\s*"(\w+)"', text)]
        keys += [key for key in re.findall(r'cfg\.get\(\s*"(\w+\.\w+)"', text)]
    write("nemo", [key for key in keys if not key.endswith((".get", ".to_dict"))])


for trainer in (specforge, speculators, modelopt, nemo):
    trainer()
