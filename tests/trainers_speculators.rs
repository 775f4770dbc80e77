//! Settings of speculators one by one: what becomes of those that need more than a name.
use spectrain::trainers::translate;

use crate::translated::{has, lacks, of, speculators, tells};
use crate::workspace::Workspace;

#[test]
fn a_flag_that_may_be_repeated_gives_a_list() {
    let script = "speculators prepare-data --model Qwen/Qwen3-8B --data a.jsonl --data hf:openai/gsm8k:main:train \\\n  \
                  --data open-perfectblend --data magpie --max-samples 500 --max-samples 900\n\
                  speculators train --verifier-name-or-path Qwen/Qwen3-8B\n";
    let found = of("a.sh", script);
    let train = serde_json::json!([
        "a.jsonl",
        "hf://openai/gsm8k:main/train",
        {"preset": "perfectblend"},
        "hf://Magpie-Align/Magpie-Llama-3.1-Pro-300K-Filtered"
    ]);
    assert_eq!(found.train, Some(train));
    // Of other flags the last one holds, as the trainer has it.
    has(&found, &["data.max_samples=900"]);
    let other = script.replace("--data a.jsonl --data", "--data nemotron --data");
    let found = of("a.sh", &other);
    tells(&found, &["nemotron", "columns that no preset reads"]);
    assert_eq!(found.train.unwrap().as_array().unwrap().len(), 3);
    let twice = script.replace(
        "speculators train",
        "speculators prepare-data --data b.jsonl\nspeculators train",
    );
    let found = of("a.sh", &twice);
    assert_eq!(found.train, Some("b.jsonl".into()));
    tells(&found, &["`prepare_data.data = [", "another command"]);
    let one = of(
        "a.sh",
        "speculators prepare-data --data open-perfectblend\nspeculators train --verifier-name-or-path a/b\n",
    );
    assert_eq!((one.train, one.preset), (None, Some("perfectblend".into())));
}

#[test]
fn a_dataset_that_was_made_of_conversations_lacks_them_unless_they_are_named() {
    let train = "speculators train --verifier-name-or-path target --data-path out\n";
    let prepare = "speculators prepare-data --data a.jsonl --data b.jsonl --output out\n";
    let found = of("a.sh", &format!("{prepare}{train}"));
    assert_eq!(found.train, Some(serde_json::json!(["a.jsonl", "b.jsonl"])));
    let notes = found.notes.join("\n");
    assert!(!notes.contains("data_path"), "{notes}");
    tells(&of("a.sh", train), &["`data_path = out`", "(`--data`)"]);
    let workspace = Workspace::new();
    workspace.write("a.sh", train);
    let refused = workspace.run_line("init --from a.sh --yes --out out.toml");
    refused.misused(&["`--data` is missing", "`a.sh`: `data_path = out`: this is"]);
}

#[test]
fn several_datasets_are_written_into_the_recipe() {
    let workspace = Workspace::new();
    let text = workspace.text("train.jsonl");
    workspace.write("more.jsonl", &text);
    let script = "speculators prepare-data --data train.jsonl --data more.jsonl\n\
                  speculators train --verifier-name-or-path target --total-seq-len 64\n";
    workspace.write("a.sh", script);
    workspace
        .run_line("init --from a.sh --yes --out out.toml")
        .succeeded();
    let recipe = workspace.text("out.toml");
    let line = "\ntrain = [\"train.jsonl\", \"more.jsonl\"]\n";
    assert!(recipe.contains(line), "{recipe}");
    workspace.write("a.sh", script.replace("more", "none"));
    workspace
        .run_line("init --from a.sh --yes --out other.toml")
        .misused(&["`a.sh`: `prepare_data.data`: `none.jsonl`"]);
    // What an option gives goes before.
    workspace
        .run_line("init --from a.sh --data train.jsonl --yes --out other.toml")
        .succeeded();
    let recipe = workspace.text("other.toml");
    assert!(recipe.contains("\ntrain = \"train.jsonl\"\n"), "{recipe}");
}

#[test]
fn settings_that_speculators_does_not_read_are_not_carried_over() {
    let found = speculators("mtp --loss-fn tv");
    lacks(&found, "objective.divergence");
    tells(
        &found,
        &[
            "`loss_fn = tv`",
            "does not read it",
            "cross-entropy with the text",
        ],
    );
    let found = speculators("peagle --max-anchors 256");
    tells(&found, &["`max_anchors = 256`", "`objective.keep`"]);
    lacks(&found, "objective.anchors");
    let found = speculators(
        "eagle3 --hidden-states-path h --mooncake-master a:1 --mooncake-protocol rdma --xpress-rank 8",
    );
    tells(&found, &["`hidden_states_path = h`", "features import"]);
    tells(
        &found,
        &[
            "`mooncake_master = a:1`",
            "`mooncake_protocol = rdma`",
            "files",
        ],
    );
    for note in &found.notes {
        assert!(
            !note.contains("xpress") && !note.contains("that is known"),
            "{note}"
        );
    }
}

#[test]
fn a_file_with_the_layers_goes_before_speculators_windows() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("a.sh");
    let write = |text: &str| std::fs::write(folder.path().join("layers.json"), text).unwrap();
    let text = "speculators train --verifier-name-or-path Qwen/Qwen3-8B --speculator-type dflash --draft-config layers.json\n";
    write(r#"{"num_hidden_layers": 2, "intermediate_size": 64}"#);
    let found = translate(text, &script).unwrap();
    has(
        &found,
        &["drafter.layers=2", "drafter.window=0", "drafter.d_ff=64"],
    );
    lacks(&found, "drafter.causal");
    write(
        r#"{"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": 512}"#,
    );
    let found = translate(text, &script).unwrap();
    has(
        &found,
        &[
            "drafter.layers=1",
            "drafter.window=512",
            "drafter.causal=true",
        ],
    );
}

#[test]
fn without_a_schedule_there_is_no_warm_up() {
    let found = speculators("eagle3 --scheduler-type none --max-steps 1000");
    has(
        &found,
        &["train.schedule=\"constant\"", "train.warmup_steps=0"],
    );
    let found = speculators("eagle3 --scheduler-type cosine --max-steps 1000");
    has(&found, &["train.warmup_steps=10"]);
}

#[test]
fn matrices_decay_as_much_as_with_the_rates_of_speculators() {
    // Of width 4096: a rate 12.8 times as high, and a decay of 0.1 over that.
    let found = speculators("eagle3");
    has(
        &found,
        &[
            "train.optimizer=\"muon\"",
            "train.matrix_learning_rate=0.0128",
            "train.weight_decay=0.00781",
        ],
    );
    let found = speculators("eagle3 --muon-adjust-lr-fn original --weight-decay 0.02");
    has(
        &found,
        &["train.matrix_learning_rate=0.001", "train.weight_decay=0.1"],
    );
    tells(&found, &["`weight_decay = 0.02`", "tables"]);
    let found = speculators("eagle3 --muon-weight-decay 0");
    has(&found, &["train.weight_decay=0.0"]);
    let found = speculators("eagle3 --optimizer adamw");
    has(&found, &["train.weight_decay=0.01"]);
    let script = "speculators train --verifier-name-or-path someone/unknown\n";
    let found = of("a.sh", script);
    has(&found, &["train.weight_decay=0.1"]);
    tells(
        &found,
        &["`muon_weight_decay = 0.1`", "divide", "0.2 √width"],
    );
}

#[test]
fn steps_that_are_given_go_before_epochs_of_a_file() {
    let workspace = Workspace::new();
    let script = "speculators train --verifier-name-or-path target --epochs 3 --lr 1e-4\n";
    workspace.write("a.sh", script);
    let line =
        "init --from a.sh --data train.jsonl --set train.steps=7 --yes --out own.toml --name own";
    workspace.run_line(line).succeeded();
    let recipe = workspace.text("own.toml");
    assert!(recipe.contains("\nsteps = 7\n"), "{recipe}");
    assert!(!recipe.contains("\nepochs = "), "{recipe}");
    assert!(recipe.contains("\nlearning_rate = 0.0001\n"), "{recipe}");
}
