use spectrain_data::sources::Sources;
use spectrain_train::OF_EPOCHS;

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::families::registry::{RECIPES, Recipe};
use crate::recipe::tables::Prompts;
use crate::recipe::tables::{Engine, FeatureMode, SyntheticTable};

const MINIMAL: &str = "\
recipe = \"eagle3\"
name = \"a\"
[target]
model = \"m\"
[data]
train = \"t.jsonl\"
eval = \"e.jsonl\"
";

fn refuse(text: &str, overrides: &[&str]) -> String {
    let overrides: Vec<String> = overrides.iter().map(|&given| given.to_owned()).collect();
    format!("{:#}", read(text, &overrides).unwrap_err())
}

fn accept(text: &str, overrides: &[&str]) -> ResolvedRecipe {
    let overrides: Vec<String> = overrides.iter().map(|&given| given.to_owned()).collect();
    read(text, &overrides).unwrap()
}

/// Why a recipe that is read, as that of a finished run is, would not be trained.
fn untrainable(text: &str, overrides: &[&str]) -> String {
    let refused = accept(text, overrides).check_trainable();
    refused.unwrap_err().to_string()
}

fn trainable(text: &str, overrides: &[&str]) {
    accept(text, overrides).check_trainable().unwrap();
}

#[test]
fn defaults_are_filled_in_and_written_out() {
    let recipe = accept(MINIMAL, &[]);
    assert_eq!((recipe.seed, recipe.data.max_length), (0, 2048));
    assert_eq!(recipe.export.to, [Engine::Sglang, Engine::Vllm]);
    assert_eq!(recipe.evaluate.temperatures, [0.0, 1.0]);
    assert_eq!(recipe.json["objective"]["draft_steps"], 7);
    let again = read(&recipe.toml, &[]).unwrap();
    assert_eq!(again.json, recipe.json);
    assert_eq!(again.toml, recipe.toml);
}

#[test]
fn what_is_read_in_the_place_of_keys_that_were_left_out_is_said_in_comments() {
    let described = |set: &[&str]| {
        let recipe = accept(MINIMAL, set);
        let described = recipe.described();
        // They set nothing: what they go with can be changed.
        assert_eq!(accept(&described, &[]).json, recipe.json);
        described
    };
    const XPRESS: [&str; 3] = [
        "recipe=dflash",
        "drafter.markov_rank=16",
        "drafter.markov=xpress",
    ];
    for (set, told) in [
        (
            &["train.schedule=wsd"][..],
            &["decay_ratio = 0.2", "decay_shape = \"linear\""][..],
        ),
        (
            &["train.schedule=wsd", "train.decay_ratio=0.3"],
            &["decay_shape = \"linear\""],
        ),
        (
            &["train.optimizer=muon", "train.learning_rate=0.5"],
            &["matrix_learning_rate = 5.0"],
        ),
        (
            &["train.optimizer=muon", "train.learning_rate=3e-4"],
            &["matrix_learning_rate = 0.003"],
        ),
        // A line of a text is no place for a comment.
        (
            &[
                "train.schedule=wsd",
                "data.template_variables={ effort = \"a\\n[train]\\nb\" }",
            ],
            &[],
        ),
        (
            &XPRESS,
            &[
                "markov_d_ff = 32",
                "markov_passes = 6",
                "consistency_weight = 0.3",
                "consistency_passes = 3",
                "guess_weight = 0.6",
            ],
        ),
        (
            &[XPRESS[0], XPRESS[1], XPRESS[2], "objective.masking=some"],
            &["markov_d_ff = 32", "markov_passes = 6"],
        ),
        (&["recipe=dflash"], &[]),
        (&["recipe=medusa"], &["decay = 0.8"]),
        (&[], &[]),
    ] {
        let described = described(set);
        let lines = described.lines();
        let found: Vec<&str> = lines
            .filter_map(|line| line.strip_prefix("# left out: "))
            .collect();
        assert_eq!(found, told, "{set:?}");
    }
}

#[test]
fn what_a_stage_of_its_own_left_out_stands_in_the_table_of_the_stage() {
    let of_stage = accept(MINIMAL, &["recipe=deer", "stages.align.schedule=wsd"]).described();
    let told = "[stages.align]\n# left out: decay_ratio = 0.2\n";
    assert!(of_stage.contains(told), "{of_stage}");
}

#[test]
fn a_key_of_another_kind_of_recipe_or_of_another_table_is_told_with_its_place() {
    let text = format!("{MINIMAL}[drafter]\nfc_norm = true\n");
    let told = refuse(&text, &["recipe=dflash"]);
    let place = "`fc_norm` is a key of `[drafter]` in recipes of other kinds (eagle3";
    assert!(told.contains(place), "{told}");
    assert!(told.contains("and this one is of `dflash`; "), "{told}");
    let instead = "delete the key from the file, and set it beside the kind that has it, as in `--vary 'recipe=KIND; \
                   drafter.fc_norm=VALUE'`";
    assert!(told.ends_with(instead), "{told}");
    let of_file = refuse(&text.replace("eagle3", "dflash"), &["seed=1"]);
    let told = refuse(MINIMAL, &["recipe=medusa", "drafter.fc_norm=true"]);
    for told in [of_file, told] {
        assert!(told.contains(place), "{told}");
        assert!(!told.contains("delete the key"), "{told}");
    }
    let told = refuse(MINIMAL, &["drafter.draft_steps=3"]);
    assert!(
        told.ends_with("`draft_steps` is a key of `[objective]`"),
        "{told}"
    );
    for set in ["drafter.nothing=1", "train.fc_norm=true"] {
        let told = refuse(MINIMAL, &[set]);
        assert!(!told.contains("is a key of"), "{told}");
    }
}

#[test]
fn an_unknown_key_is_shown_with_line_column_and_the_valid_keys() {
    let tables = [
        ("", "max_lenght", "`seed`"),
        ("[target]", "modle", "`model`"),
        ("[data]", "max_lenght", "`max_length`"),
        ("[features]", "modus", "`mode`"),
        ("[drafter]", "captured", "`captured_layers`"),
        ("[objective]", "step", "`decay`"),
        ("[train]", "stpes", "`steps`"),
        ("[export]", "too", "`to`"),
        ("[evaluate]", "temperature", "`temperatures`"),
        ("[synthetic]", "layer", "`layers`"),
    ];
    for (table, key, valid) in tables {
        let text = match (table, MINIMAL.find(table)) {
            ("", _) => format!("{key} = 1\n{MINIMAL}"),
            (_, Some(at)) => {
                let at = at + table.len() + 1;
                format!("{}{key} = 1\n{}", &MINIMAL[..at], &MINIMAL[at..])
            }
            (_, None) => format!("{MINIMAL}{table}\n{key} = 1\n"),
        };
        let line = text
            .lines()
            .position(|line| line.starts_with(&format!("{key} = 1")))
            .unwrap()
            + 1;
        let error = refuse(&text, &[]);
        assert!(
            error.contains(&format!("line {line}, column 1")),
            "{table}: {error}"
        );
        assert!(
            error.contains(&format!("unknown field `{key}`")) && error.contains(valid),
            "{table}: {error}"
        );
    }
}

#[test]
fn a_value_of_the_wrong_type_is_shown_where_it_stands() {
    let tables = [
        (
            "[features]\nmode = \"alive\"\n",
            "line 9, column 8",
            "`live`, `stored`, `served`",
        ),
        (
            "[drafter]\ndraft_vocab = \"all\"\n",
            "line 9, column 15",
            "expected a whole number from 0",
        ),
        (
            "[objective]\ndecay = true\n",
            "line 9, column 9",
            "expected a number",
        ),
        (
            "[train]\nsteps = -1\n",
            "line 9, column 9",
            "expected a whole number from 1",
        ),
        (
            "[evaluate]\ntemperatures = 0.5\n",
            "line 9, column 16",
            "expected a list, such as `[0.5]`",
        ),
        (
            "[export]\nto = [\"sglang\", \"tgi\"]\n",
            "line 9, column 17",
            "one of `sglang`, `vllm`, `hf`",
        ),
        (
            "[evaluate]\nbaseline = 1\n",
            "line 9, column 12",
            "expected a boolean",
        ),
        (
            "[evaluate]\ndrafts = [{ shape = \"bush\" }]\n",
            "line 9",
            "unknown variant `bush`",
        ),
        (
            "[evaluate]\ndrafts = [{ shape = \"static\", tree = [[1]] }]\n",
            "line 9",
            "expected [0] among the paths, before [1]",
        ),
    ];
    for (table, place, expected) in tables {
        let error = refuse(&format!("{MINIMAL}{table}"), &[]);
        assert!(
            error.contains(place) && error.contains(expected),
            "{table}: {error}"
        );
    }
}

/// A table that makes no sense, the place at which it does not, and what is said of it.
const IMPOSSIBLE: [[&str; 3]; 11] = [
    [
        "[evaluate]\nprompts = 0\n",
        "line 9, column 11",
        "`evaluate.prompts`",
    ],
    [
        "[evaluate]\ntargets = [\"n\", \"n\"]\n",
        "line 9, column 11",
        "`evaluate.targets`: expected different folders or hub ids, found `n` twice",
    ],
    [
        "[evaluate]\ntargets = [\"m\"]\n",
        "line 9, column 11",
        "`evaluate.targets`: expected targets other than `target.model`, found `m`",
    ],
    [
        "[evaluate]\ntemperatures = []\n",
        "line 9, column 16",
        "`evaluate.temperatures`",
    ],
    [
        "[evaluate]\nverifier = \"greedy\"\n",
        "line 9, column 12",
        "`evaluate.verifier`",
    ],
    [
        "[evaluate]\ndrafts = [{ shape = \"dynamic\", nodes = 0 }]\n",
        "line 9, column 10",
        "`evaluate.drafts`",
    ],
    [
        "[evaluate]\nverifier = \"block\"\ndrafts = [{ shape = \"dynamic\", nodes = 9 }]\n",
        "line 9, column 12",
        "`evaluate.verifier`",
    ],
    [
        "[evaluate]\ntop_p = 0.0\n",
        "line 9, column 9",
        "`evaluate.top_p`",
    ],
    ["[export]\nto = []\n", "line 9, column 6", "`export.to`"],
    [
        "[train]\nbatch_tokens = 3000\n",
        "line 9, column 16",
        "`train.batch_tokens`",
    ],
    [
        "[objective]\ndraft_steps = 0\n",
        "line 9, column 15",
        "`objective.draft_steps`",
    ],
];

#[test]
fn an_impossible_value_is_shown_with_its_key_and_place() {
    for [table, place, key] in IMPOSSIBLE {
        let error = refuse(&format!("{MINIMAL}{table}"), &[]);
        assert!(
            error.contains(place) && error.contains(key),
            "{table}: {error}"
        );
    }
    let apart = format!("{MINIMAL}[export]\nto = [\"speculators\"]\n");
    accept(&apart, &[]);
    let error = refuse(&apart.replace("eagle3", "medusa"), &[]);
    assert!(
        error.contains("line 9, column 6")
            && error.contains("`export.to`")
            && error.contains("medusa"),
        "{error}"
    );
    let error = refuse(&MINIMAL.replace("\"a\"", "\"../a\""), &[]);
    assert!(
        error.contains("line 2, column 8") && error.contains("../a"),
        "{error}"
    );
}

#[test]
fn what_is_not_toml_is_shown_where_it_stands() {
    let error = refuse("recipe = \"eagle3\"\nname = a b\n", &[]);
    assert!(error.contains("line 2, column"), "{error}");
}

#[test]
fn an_unknown_recipe_lists_the_known_ones() {
    let error = refuse("recipe = \"eagel3\"", &[]);
    assert!(
        error.contains("line 1, column 10") && error.contains("known recipes: eagle3"),
        "{error}"
    );
    assert!(refuse("name = \"a\"", &[]).contains("key `recipe` is missing"));
    assert!(refuse("recipe = 3", &[]).contains("expected a string"));
}

#[test]
fn an_override_changes_one_key_and_may_be_a_bare_word() {
    let overrides = [
        "evaluate.prompts=3",
        "features.mode=stored",
        "data.train=/some where/x.jsonl",
        "evaluate.temperatures=[0.5]",
        "name=b",
        "target.revision=1e3",
    ];
    // A number is no revision, so that one needs its quotes.
    let error = refuse(MINIMAL, &overrides);
    assert!(
        error.contains("`--set target.revision=1e3`") && error.contains("expected a string"),
        "{error}"
    );
    let recipe = accept(MINIMAL, &overrides[..5]);
    assert_eq!(recipe.evaluate.prompts, Prompts::Count(3));
    assert_eq!(recipe.features.mode, FeatureMode::Stored);
    let only = |sources: &Option<Sources>| sources.as_ref().unwrap().only().map(Path::to_owned);
    assert_eq!(only(&recipe.data.train), Some("/some where/x.jsonl".into()));
    assert_eq!(only(&recipe.data.eval), Some("e.jsonl".into()));
    assert_eq!(recipe.evaluate.temperatures, [0.5]);
    assert_eq!(recipe.name, "b");
}

#[test]
fn a_value_may_take_the_place_of_a_table_in_a_table() {
    let text = format!("{MINIMAL}[objective]\ndivergence = {{ tempered_kl = 0.5 }}\n");
    let divergence = |overrides: &[&str]| {
        let recipe = accept(&text, overrides);
        recipe.json["objective"]["divergence"].clone()
    };
    assert_eq!(divergence(&[])["tempered_kl"], 0.5);
    assert_eq!(divergence(&["objective.divergence=kl"]), "kl");
    let error = refuse(&text, &["objective=kl"]);
    assert!(error.contains("`objective` is a table"), "{error}");
}

#[test]
fn an_error_in_an_override_names_the_override() {
    let cases = [
        ("train.stpes=1", "unknown field `stpes`"),
        ("tarin.steps=1", "unknown field `tarin`"),
        ("evaluate.prompts=many", "expected a number of prompts"),
        ("evaluate.prompts=0", "`evaluate.prompts`"),
        ("target=x", "`target` is a table"),
        ("name.x=1", "`name` is not a table"),
        ("recipe=nothing", "unknown recipe `nothing`"),
        (
            "recipe=import",
            "a run that `spectrain import` made has no stages",
        ),
        ("a b=1", "expected a key"),
        ("export.to=[\"tgi\"]", "unknown variant `tgi`"),
    ];
    for (given, expected) in cases {
        let error = refuse(MINIMAL, &["evaluate.seed=1", given]);
        assert!(
            error.contains(&format!("`--set {given}`")) && error.contains(expected),
            "{given}: {error}"
        );
    }
}

#[test]
fn an_override_cannot_smuggle_in_further_keys() {
    let recipe = accept(MINIMAL, &["target.revision=\"x\"\nseed = 7"]);
    assert_eq!(recipe.seed, 0);
}

#[test]
fn outputs_of_the_synthetic_stage_must_not_be_given_and_others_must() {
    let error = refuse(&format!("{MINIMAL}[synthetic]\nlayers = 2\n"), &[]);
    assert!(
        error.contains("`target.model`") && error.contains("must be absent beside `[synthetic]`"),
        "{error}"
    );
    let synthetic = "recipe = \"eagle3\"\nname = \"a\"\n[synthetic]\n";
    assert_eq!(
        accept(synthetic, &[]).synthetic,
        Some(SyntheticTable::default())
    );
    let error = refuse(synthetic, &["data.eval=x"]);
    assert!(
        error.contains("`--set data.eval=x`") && error.contains("absent"),
        "{error}"
    );
    let error = refuse(
        "recipe = \"eagle3\"\nname = \"a\"\n[target]\nmodel = \"m\"\n",
        &[],
    );
    assert!(error.contains("key `data.train`: is missing"), "{error}");
}

#[test]
fn heads_of_the_synthetic_target_have_an_even_width() {
    let synthetic = "recipe = \"eagle3\"\nname = \"a\"\n[synthetic]\n";
    let of = |width: usize| refuse(synthetic, &[&format!("synthetic.d_head={width}")]);
    for (width, expected) in [(0, "at least 1"), (5, "an even number")] {
        let told = format!("expected {expected}, found {width}");
        let error = of(width);
        assert!(error.contains("d_head") && error.contains(&told), "{error}");
    }
}

#[test]
fn every_shipped_recipe_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(
                text.contains("\n# spectrain recipe recipes/"),
                "{}: no command",
                path.display()
            );
            read_file(&path, &[]).unwrap();
            seen += 1;
        }
    }
    assert!(seen >= 4);
}

#[test]
fn epochs_take_the_place_of_steps_and_are_written_alone() {
    let recipe = accept(MINIMAL, &["train.epochs=2.5"]);
    assert_eq!(
        (recipe.train.epochs, recipe.train.steps),
        (Some(2.5), OF_EPOCHS)
    );
    assert_eq!(recipe.json["train"]["steps"], Value::Null);
    // What a run keeps of its recipe reads as it was.
    let again = accept(&recipe.toml, &[]);
    assert_eq!((again.train, again.json), (recipe.train, recipe.json));
    let error = refuse(MINIMAL, &["train.epochs=2", "train.steps=10"]);
    assert!(
        error.contains("`train.epochs`") && error.contains("absent beside `train.steps`"),
        "{error}"
    );
    let error = refuse(MINIMAL, &["train.epochs=0"]);
    assert!(
        error.contains("`train.epochs`") && error.contains("above 0"),
        "{error}"
    );
}

#[test]
fn a_length_that_is_set_takes_the_place_of_the_other_one_in_the_file() {
    let lengths = |keys: &str, overrides: &[&str]| {
        let recipe = accept(&format!("{MINIMAL}[train]\n{keys}\n"), overrides);
        (recipe.train.steps, recipe.train.epochs)
    };
    for twenty in ["train.steps=20", "train={steps=20}"] {
        assert_eq!(lengths("epochs = 3", &[twenty]), (20, None));
    }
    for three in ["train.epochs=3", "train={epochs=3}"] {
        let (_, epochs) = lengths("steps = 20", &[three]);
        assert_eq!(epochs, Some(3.0));
    }
    // In a stage of its own, too.
    let deer = MINIMAL.replace("eagle3", "deer")
        + "[drafter]\nfresh = { layers = 1 }\nmask_token = 1\nseparator_token = 2\n[stages.align]\nepochs = 3\n";
    for five in [
        "stages.align.steps=5",
        "stages.align={steps=5}",
        "stages={align={steps=5}}",
    ] {
        let recipe = accept(&deer, &[five]);
        let align = recipe.training("align");
        assert_eq!((align.steps, align.epochs), (5, None), "{five}");
    }
    // The file alone, and overrides among themselves, contradict each other.
    refuse(&format!("{MINIMAL}[train]\nsteps = 2\nepochs = 3\n"), &[]);
    for both in [
        &["train.steps=2", "train.epochs=3"][..],
        &["train={steps=2}", "train.epochs=3"],
        &["train={steps=2,epochs=3}"],
    ] {
        refuse(MINIMAL, both);
    }
}

#[test]
fn a_stage_counted_in_steps_changes_a_training_counted_in_epochs() {
    let deer = MINIMAL.replace("eagle3", "deer")
        + "[drafter]\nfresh = { layers = 1 }\nmask_token = 1\nseparator_token = 2\n[train]\nepochs = 3\n";
    let recipe = accept(&deer, &["stages.adapt.steps=0", "stages.refine.epochs=1"]);
    assert_eq!(recipe.training_stages(), ["align", "refine"]);
    let lengths = |stage: &str| (recipe.training(stage).steps, recipe.training(stage).epochs);
    assert_eq!(lengths("align"), (OF_EPOCHS, Some(3.0)));
    assert_eq!(lengths("refine"), (OF_EPOCHS, Some(1.0)));
    assert_eq!(lengths("adapt"), (0, None));
    let error = refuse(&deer, &["stages.align.steps=5", "stages.align.epochs=5"]);
    assert!(error.contains("`stages.align.epochs`"), "{error}");
}

#[test]
fn several_sources_have_weights_and_the_evaluation_none() {
    let recipe = accept(
        MINIMAL,
        &["data.train=[\"a.jsonl\", { path = \"b/*.json\", weight = 2 }]"],
    );
    let sources = recipe.data.train.as_ref().unwrap().each();
    assert_eq!((sources[0].weight, sources[1].weight), (1.0, 2.0));
    assert_eq!(accept(&recipe.toml, &[]).data, recipe.data);
    for (change, expected) in [
        ("data.train={ path = \"a\", weight = 0 }", "above 0"),
        ("data.train=[]", "at least one"),
        ("data.train=3", "a list of these"),
        ("data.eval={ path = \"a\", weight = 2 }", "without weights"),
        ("data.held_out=0.1", "absent beside `eval`"),
    ] {
        let error = refuse(MINIMAL, &[change]);
        assert!(error.contains(expected), "{change}: {error}");
    }
}

#[test]
fn a_whole_value_takes_the_place_of_another_and_a_table_of_the_recipe_keeps_its_keys() {
    let recipe = format!(
        "{MINIMAL}[objective]\ndraft_steps = 3\ndivergence = {{ tempered_kl = 0.5 }}\n[train]\nsteps = 5\n"
    );
    let divergence = |change: &str| accept(&recipe, &[change]).json["objective"].clone();
    let changed = divergence("objective.divergence={ jsd = 0.25 }");
    assert_eq!(changed["divergence"], serde_json::json!({"jsd": 0.25}));
    assert_eq!(changed["draft_steps"], 3);
    assert_eq!(divergence("objective.divergence=kl")["divergence"], "kl");
    let changed = divergence("objective={ draft_steps = 4 }");
    assert_eq!(
        changed["divergence"],
        serde_json::json!({"tempered_kl": 0.5})
    );
    assert_eq!(changed["draft_steps"], 4);
    assert_eq!(accept(&recipe, &["train={ keep = 1 }"]).train.steps, 5);
}

#[test]
fn a_value_of_another_kind_is_told_in_words() {
    for (change, expected) in [
        (
            "train.optimizer=3",
            "expected `adamw` or `muon`, found a whole number",
        ),
        ("features.mode=true", "expected one of `live`, `stored`"),
        (
            "objective.divergence=jsd",
            "expected `{ jsd = VALUE }`, found the name alone",
        ),
        (
            "objective.divergence={ kl = 1 }",
            "`kl` has no value: expected `\"kl\"` alone, found a whole number behind it",
        ),
        (
            "objective.divergence={}",
            "the name of one choice, found none in it",
        ),
        (
            "objective.divergence={ jsd = 0.5, top_k = 3 }",
            "the name of one choice, found several in it",
        ),
        ("target=3", "`target` is a table"),
        ("drafter=3", "expected a table"),
        ("evaluate.drafts=[3]", "expected a table"),
        ("train.steps=2020-01-01", "expected no date"),
        (
            "data.template_variables={ a = 2020-01-01 }",
            "expected no date",
        ),
        (
            "features=[\"stored\"]",
            "key `features`: expected a table, found a list",
        ),
    ] {
        let error = refuse(MINIMAL, &[change]);
        let key = change.split('=').next().unwrap();
        assert!(
            error.contains(expected) && error.contains(key),
            "{change}: {error}"
        );
    }
}

#[test]
fn without_evaluation_data_a_share_is_held_out() {
    let recipe = MINIMAL.replace("eval = \"e.jsonl\"\n", "");
    assert_eq!(accept(&recipe, &[]).data.held_out(), 0.02);
    assert_eq!(accept(&recipe, &["data.held_out=0.1"]).data.held_out(), 0.1);
    let error = refuse(&recipe, &["data.held_out=0.5"]);
    assert!(
        error.contains("`data.held_out`") && error.contains("at most 0.2"),
        "{error}"
    );
}

#[test]
fn variables_of_the_template_are_kept_and_written_out() {
    let change = "data.template_variables={ enable_thinking = false, effort = \"low\" }";
    let recipe = accept(MINIMAL, &[change]);
    let variables = serde_json::json!({"enable_thinking": false, "effort": "low"});
    assert_eq!(recipe.json["data"]["template_variables"], variables);
    assert_eq!(accept(&recipe.toml, &[]).json, recipe.json);
    let error = refuse(MINIMAL, &["data.template_variables.tools=[]"]);
    assert!(
        error.contains("`tools`") && error.contains("the program sets"),
        "{error}"
    );
    let error = refuse(MINIMAL, &["data.turns=expand", "data.mask=all"]);
    assert!(error.contains("`data.turns`"), "{error}");
}

#[test]
fn a_name_of_another_trainer_is_asked_about_and_a_missing_one_is_explained() {
    let error = refuse(&format!("{MINIMAL}[train]\nlr = 1e-4\n"), &[]);
    assert!(
        error.contains("line 9, column 1") && error.contains("did you mean `learning_rate`?"),
        "{error}"
    );
    let error = refuse(MINIMAL, &["export.to=[\"trtllm\"]"]);
    assert!(error.contains("did you mean `tensorrt-llm`?"), "{error}");
    let error = refuse(&MINIMAL.replace("name = \"a\"\n", ""), &[]);
    assert!(
        error.contains("key `name`: is missing: it names the run's folder")
            && error.contains("`--set name=NAME`"),
        "{error}"
    );
}

#[test]
fn a_key_that_stands_in_no_table_is_asked_about_with_its_table() {
    for (set, question) in [
        ("steps=3", "; did you mean `train.steps`?"),
        ("max_lenght=5", "; did you mean `data.max_length`?"),
        ("lr=1e-4", "; did you mean `train.learning_rate`?"),
        (
            "captured_layers=[1]",
            "; did you mean `drafter.captured_layers`?",
        ),
        // A table that the recipe does not have.
        ("held_out=0.1", "; did you mean `data.held_out`?"),
        ("experiment=a", "; did you mean `track.experiment`?"),
        ("seeds=1", "; did you mean `seed`?"),
    ] {
        let error = refuse(MINIMAL, &[set]);
        let asks = error.ends_with(question) && error.matches("did you mean").count() == 1;
        assert!(asks, "{set}: {error}");
    }
    let several = refuse(MINIMAL, &["dtype=bf16"]);
    let named = ["`target.dtype`", " or ", "`export.dtype`"];
    assert!(named.iter().all(|name| several.contains(name)), "{several}");
    let none = refuse(MINIMAL, &["nonsense=1"]);
    assert!(!none.contains("did you mean"), "{none}");
    let of_file = refuse(&format!("steps = 3\n{MINIMAL}"), &[]);
    assert!(
        of_file.contains("line 1, column 1") && of_file.ends_with("; did you mean `train.steps`?"),
        "{of_file}"
    );
    let synthetic = MINIMAL.replace("[target]\nmodel = \"m\"\n", "[synthetic]\n");
    let both = refuse(&synthetic, &["steps=3"]);
    let named = ["`synthetic.steps`", " or ", "`train.steps`"];
    assert!(named.iter().all(|name| both.contains(name)), "{both}");
}

#[test]
fn a_stage_whose_validations_measure_nothing_is_not_trained() {
    let deer = MINIMAL.replace("eagle3", "deer")
        + "[drafter]\nfresh = { layers = 1 }\nmask_token = 1\nseparator_token = 2\n";
    let told = "expected at least 1, as validations of the stage `adapt` do not count τ";
    for key in ["train.validate_samples", "stages.adapt.validate_samples"] {
        let error = untrainable(&deer, &[&format!("{key}=0")]);
        assert!(
            error.starts_with(&format!("key `{key}`: {told}")),
            "{error}"
        );
        assert!(error.contains("does not draft yet; found 0"), "{error}");
    }
    // The other stages draft.
    for own in ["stages.adapt.validate_samples=4", "stages.adapt.steps=0"] {
        trainable(&deer, &["train.validate_samples=0", own]);
    }
    // Without the target, validations take the answers that are there.
    let unmeasured = ["features.mode=streamed", "train.validate_samples=0"];
    trainable(MINIMAL, &unmeasured);
    let drawn = [&unmeasured[..], &["evaluate.temperatures=[1.0]"]].concat();
    let error = untrainable(MINIMAL, &drawn);
    let told = "key `train.validate_samples`: expected at least 1";
    assert!(
        error.contains(told) && error.contains("`evaluate.temperatures` has no 0"),
        "{error}"
    );
    trainable(MINIMAL, &["train.validate_samples=0", drawn[2]]);
}

#[test]
fn a_drafter_writes_texts_of_its_own_only_where_the_target_is_there_to_judge_them() {
    let text = MINIMAL.replace("eagle3", "distillspec")
        + "[drafter]\nfresh = { layers = 1 }\n[objective]\non_policy = { fraction = 0.5 }\n";
    for mode in ["live", "stored"] {
        trainable(&text, &[&format!("features.mode={mode}")]);
    }
    for mode in ["served", "streamed", "imported"] {
        let mode = format!("features.mode={mode}");
        let error = untrainable(&text, &[&mode]);
        let told = "key `objective.on_policy.fraction`: expected 0 with `features.mode = ";
        assert!(
            error.starts_with(told) && error.ends_with("found 0.5"),
            "{error}"
        );
        trainable(&text, &[&mode, "objective.on_policy.fraction=0.0"]);
    }
}

#[test]
fn a_drafter_writes_replies_anew_only_where_the_mask_tells_them_from_prompts() {
    let text = MINIMAL.replace("eagle3", "distillspec")
        + "[drafter]\nfresh = { layers = 1 }\n[objective]\non_policy = { fraction = 0.5 }\n";
    for mask in ["assistant", "last_turn"] {
        trainable(&text, &[&format!("data.mask={mask}")]);
    }
    let error = untrainable(&text, &["data.mask=all"]);
    let told = "key `objective.on_policy.fraction`: expected 0 with `data.mask = \"all\"`";
    assert!(
        error.contains(told) && error.ends_with("found 0.5"),
        "{error}"
    );
    let without = ["data.mask=all", "objective.on_policy.fraction=0.0"];
    trainable(&text, &without);
}

#[test]
fn a_file_that_is_no_recipe_is_told_by_what_it_is() {
    let root = tempfile::tempdir().unwrap();
    let refused = |name: &str, text: &str| {
        let path = root.path().join(name);
        std::fs::write(&path, text).unwrap();
        let error = read_file(&path, &[]).unwrap_err();
        assert!(error.is::<crate::errors::Misuse>());
        format!("{error:#}")
    };
    for (name, text) in [
        ("a.yaml", "model:\n  a: 3\n"),
        ("a.YML", "a: 3\n"),
        ("a.json", "{\"a\": 3}"),
    ] {
        let error = refused(name, text);
        assert!(
            error.contains("is no recipe") && error.contains("`spectrain init --from "),
            "{error}"
        );
        assert!(!error.contains("parse error"), "{error}");
    }
    let error = refused("a.jsonl", "{\"messages\": []}\n");
    assert!(
        error.contains("it holds conversations") && error.contains("`data.train`"),
        "{error}"
    );
    let error = refused("a.toml", "{\"messages\": []}\n");
    assert!(error.contains("TOML parse error"), "{error}");
    // What a file is called does not matter where it is TOML.
    let path = root.path().join("b.json");
    std::fs::write(&path, MINIMAL).unwrap();
    let recipe = read_file(&path, &[]).unwrap();
    assert_eq!(
        recipe.origin.unwrap().to_string(),
        path.display().to_string()
    );
}

#[test]
fn text_that_is_not_utf_8_is_told_with_its_line() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.toml");
    std::fs::write(&path, b"recipe = \"eagle3\"\nname = \"\xff\"\n").unwrap();
    let error = format!("{:#}", read_file(&path, &[]).unwrap_err());
    assert!(
        error.ends_with("line 2: expected text in UTF-8, found the byte 0xff"),
        "{error}"
    );
}

#[test]
fn numbers_of_an_optimiser_that_could_only_end_in_no_number_are_refused() {
    for (change, expected) in [
        ("train.min_lr_ratio=1.5", "expected 0 to 1, found 1.5"),
        ("train.min_lr_ratio=inf", "expected 0 to 1, found inf"),
        ("train.weight_decay=inf", "expected 0 to 1000000, found inf"),
        (
            "train.epsilon=inf",
            "expected a number from 1e-30 to 1, found inf",
        ),
        (
            "train.epsilon=1e-300",
            "expected a number from 1e-30 to 1, found 1e-300",
        ),
        (
            "train.learning_rate=1e308",
            "expected a number from 1e-30 to 1000000, found 1e308",
        ),
        ("train.learning_rate=0.0", "to 1000000, found 0"),
        (
            "train.max_grad_norm=1e308",
            "expected 0 to 1000000, found 1e308",
        ),
        (
            "train.max_grad_norm=inf",
            "expected 0 to 1000000, found inf",
        ),
        ("train.clip_value=nan", "expected 0 to 1000000, found NaN"),
        (
            "train.clip_value=1e-300",
            "expected 0, or at least 1e-30, found 1e-300",
        ),
        (
            "evaluate.temperatures=[1e308]",
            "expected 0 to 100, found 1e308",
        ),
    ] {
        let error = refuse(MINIMAL, &[change]);
        let key = change.split('=').next().unwrap();
        assert!(
            error.contains(&format!("key `{key}`: ")) && error.ends_with(expected),
            "{error}"
        );
    }
    for change in [
        "train.min_lr_ratio=1.0",
        "train.weight_decay=0.0",
        "train.max_grad_norm=0.0",
        "train.clip_value=1e-30",
        "train.epsilon=1e-10",
    ] {
        accept(MINIMAL, &[change]);
    }
}

#[test]
fn how_a_rate_falls_at_the_end_is_said_of_the_only_schedule_that_reads_it() {
    for (change, found) in [
        ("train.decay_ratio=0.4", "0.4"),
        ("train.decay_shape=minus_sqrt", "\"minus_sqrt\""),
    ] {
        accept(MINIMAL, &["train.schedule=wsd", change]);
        let error = refuse(MINIMAL, &[change]);
        let key = change.split('=').next().unwrap();
        let told = format!(
            "key `{key}`: expected nothing beside `schedule = \"cosine\"`, as only `\"wsd\"` reads it, found {found}"
        );
        assert!(error.ends_with(&told), "{error}");
    }
    // A stage may have another schedule than the others.
    let text = "recipe = \"deer\"\nname = \"a\"\n[synthetic]\n[train]\nschedule = \"wsd\"\ndecay_ratio = 0.4\n\
                [stages.align]\nschedule = \"linear\"\n[stages.refine]\nschedule = \"wsd\"\n";
    let recipe = read(text, &[]).unwrap();
    let ratio = |stage| recipe.training(stage).decay_ratio;
    let ratios = ["adapt", "align", "refine"].map(ratio);
    assert_eq!(ratios, [Some(0.4), None, Some(0.4)]);
    let again = read(&recipe.toml, &[]).unwrap();
    assert_eq!(recipe.json, again.json);
}

#[test]
fn a_key_of_the_file_that_an_override_leaves_no_place_for_is_to_be_deleted() {
    for (kind, tables, change) in [
        (
            "eagle3",
            "[train]\nschedule = \"wsd\"\ndecay_ratio = 0.4\n",
            "train.schedule=constant",
        ),
        (
            "dflash",
            "[drafter]\nmask_token = 0\nmarkov_rank = 4\nmarkov = \"xpress\"\nmarkov_passes = 2\n",
            "drafter.markov=vanilla",
        ),
    ] {
        let text = format!("recipe = \"{kind}\"\nname = \"a\"\n[synthetic]\n{tables}");
        accept(&text, &[]);
        let error = refuse(&text, &[change]);
        let advice = "; delete the key from the file";
        assert!(
            error.starts_with("line ") && error.ends_with(advice),
            "{error}"
        );
    }
    // Of the other key nothing has to be deleted: it is an override itself.
    let error = refuse(MINIMAL, &["train.decay_ratio=0.4"]);
    assert!(!error.contains("delete"), "{error}");
}

/// Tables whose keys are completed in a recipe, by their places in it: those of all recipes, and those of its training stages.
fn completed_tables(recipe: &ResolvedRecipe) -> Vec<String> {
    let tables = ["drafter", "objective", "train"].map(|table| format!("/{table}"));
    let stages = recipe.stages.keys().map(|stage| format!("/stages/{stage}"));
    tables.into_iter().chain(stages).collect()
}

#[test]
fn what_an_earlier_version_made_without_a_key_is_known_of_every_recipe() {
    // Left out for a value that is not their default.
    const LEFT_OUT: [&str; 3] = ["steps", "warmup_steps", "base_until"];
    let trials = |kind: &'static Recipe| kind.trials.iter().map(move |&trial| (kind.name, trial));
    for (kind, trial) in RECIPES.iter().flat_map(trials) {
        let set = json!(trial.parse::<toml::Table>().unwrap());
        let recipe = accept(&(MINIMAL.replace("eagle3", kind) + trial), &[]);
        let defaults = (recipe.defaults)();
        for table in completed_tables(&recipe) {
            let keys = recipe.json.pointer(&table).and_then(Value::as_object);
            let Some(keys) = keys else {
                panic!("{kind}: no `{table}`");
            };
            for key in keys.keys() {
                let mut before = recipe.json.clone();
                let recorded = before.pointer_mut(&table).unwrap();
                let recorded = recorded.as_object_mut().unwrap();
                recorded.shift_remove(key).unwrap();
                defaults.complete(&mut before, &recipe.json);
                let is_known = before == recipe.json;
                let is_set = set.pointer(&format!("{table}/{key}")).is_some();
                let may_be_unknown = is_set || LEFT_OUT.contains(&key.as_str());
                assert!(is_known || may_be_unknown, "{kind}: {table}/{key}");
            }
        }
        // Nothing is added to what lacks nothing.
        let mut whole = recipe.json.clone();
        defaults.complete(&mut whole, &recipe.json);
        assert_eq!(whole, recipe.json);
    }
}

#[test]
fn a_training_that_waits_for_no_validation_is_refused() {
    accept(MINIMAL, &["train.patience=1"]);
    let error = refuse(MINIMAL, &["train.patience=0"]);
    assert!(
        error.contains("key `train.patience`: expected at least 1"),
        "{error}"
    );
}
