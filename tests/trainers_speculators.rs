//! Settings of speculators one by one: what becomes of those that need more than a name.
use spectrain::trainers::{Translated, translate};

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

/// A script that has the target answer a dataset, with these flags, prepares what that wrote and trains on it.
fn regenerating(flags: &str, outfile: &str, prepared: &str) -> String {
    format!(
        "OUT={outfile}\nspeculators regenerate-responses --endpoint http://a:1/v1/chat/completions --dataset chats.jsonl \\\n  {flags} \
         --outfile \"$OUT\" --resume\nspeculators prepare-data --model Qwen/Qwen3-8B --data {prepared} --output out\n\
         speculators train --verifier-name-or-path Qwen/Qwen3-8B --data-path out\n"
    )
}

#[test]
fn a_target_that_answers_anew_does_so_in_the_recipe() {
    let flags = "--limit 1000 --concurrency 16 --max-tokens 1024 --max-retries 5 --model served --language-filter EN \
                 --sampling-params '{\"temperature\": 0.6, \"top_p\": 0.9, \"seed\": 3, \"top_k\": 20, \"n\": 2, \
                 \"chat_template_kwargs\": {\"enable_thinking\": false}}' --seed 0";
    for prepared in ["\"$OUT\"", "./made/none.jsonl"] {
        let script = regenerating(flags, "made/none.jsonl", prepared);
        let found = of("a.sh", &script);
        assert_eq!(found.train, Some("chats.jsonl".into()), "{prepared}");
        has(
            &found,
            &[
                "data.max_samples=1000",
                "data.template_variables={ enable_thinking = false }",
                "regenerate.server=\"http://a:1\"",
                "regenerate.model=\"served\"",
                "regenerate.failed=\"drop\"",
                "regenerate.max_tokens=1024",
                "regenerate.concurrency=16",
                "regenerate.retries=5",
                "regenerate.temperature=0.6",
                "regenerate.top_p=0.9",
                "regenerate.seed=3",
                "regenerate.extra={ top_k = 20 }",
            ],
        );
        tells(
            &found,
            &["`regenerate.sampling_params = ", "no key for `n`"],
        );
        tells(&found, &["`regenerate.language_filter = EN`", "language"]);
        for part in ["data_path", "that is known"] {
            let told = found.notes.iter().any(|note| note.contains(part));
            assert!(!told, "{part}: {:?}", found.notes);
        }
        tells(&found, &["`prepare_data.output = out`", "the run's folder"]);
        tells(&found, &["`regenerate.resume = true`", "by itself"]);
        tells(&found, &["`regenerate.seed = 0`", "nothing is drawn"]);
    }
}

#[test]
fn the_module_and_the_older_program_answer_with_the_same_defaults() {
    for program in [
        "python -m speculators regenerate-responses",
        "python scripts/response_regeneration/script.py",
    ] {
        let script = format!(
            "{program} --limit 50\nspeculators prepare-data --data ultrachat_Qwen3-8B.jsonl --max-samples 20\n\
             speculators train --verifier-name-or-path Qwen/Qwen3-8B\n"
        );
        let found = of("a.sh", &script);
        assert_eq!(
            (found.train.as_ref(), found.preset.as_deref()),
            (None, Some("ultrachat"))
        );
        has(
            &found,
            &[
                "data.max_samples=20",
                "regenerate.server=\"http://127.0.0.1:8000\"",
                "regenerate.max_tokens=8192",
                "regenerate.concurrency=64",
                "regenerate.retries=3",
            ],
        );
        lacks(&found, "regenerate.temperature");
    }
}

#[test]
fn answers_that_are_there_are_trained_on_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("answers.jsonl");
    let outfile = file.to_str().unwrap();
    let script = regenerating("--limit 1000", outfile, "\"$OUT\"");
    let found = of("a.sh", &script);
    assert_eq!(found.train, Some("chats.jsonl".into()));
    std::fs::write(&file, "").unwrap();
    let found = of("a.sh", &script);
    assert_eq!(found.train, Some(outfile.into()));
    lacks(&found, "regenerate");
    lacks(&found, "data.max_samples");
    tells(
        &found,
        &[
            "`regenerate.dataset = chats.jsonl`",
            "is there",
            "other settings of the command become no keys",
            "may not be complete",
        ],
    );
    let found = of("a.sh", &script.replace(" --resume", ""));
    tells(&found, &["`regenerate.dataset = chats.jsonl`", "is there"]);
    let told = |found: &Translated, part: &str| found.notes.iter().any(|note| note.contains(part));
    assert!(!told(&found, "may not be complete"), "{:?}", found.notes);
    // Nor are answers that go nowhere, of which nothing else is to be known.
    let flags =
        "--split train --subset main --language-filter EN --reasoning-effort '{\"low\": 1.0}'";
    let found = of("a.sh", &regenerating(flags, "a.jsonl", "b.jsonl"));
    for flag in [
        "split",
        "subset",
        "language_filter",
        "reasoning_effort",
        "resume",
    ] {
        assert!(
            !told(&found, &format!("regenerate.{flag}")),
            "{:?}",
            found.notes
        );
    }
    assert_eq!(found.train, Some("b.jsonl".into()));
    lacks(&found, "regenerate");
    tells(
        &found,
        &[
            "`regenerate.dataset = chats.jsonl`",
            "other files than the command writes",
            "not trained on",
            "other settings of the command become no keys",
        ],
    );
    assert!(!told(&found, "`--data`"), "{:?}", found.notes);
    // The endpoint and the five flags above.
    let [carried, given] = found.carried;
    assert!(carried + 6 <= given, "{:?}", found.carried);
}

#[test]
fn a_command_without_flags_answers_its_own_dataset() {
    let script = "speculators regenerate-responses\nspeculators prepare-data --data ultrachat_Qwen3-8B.jsonl\n\
                  speculators train --verifier-name-or-path Qwen/Qwen3-8B\n";
    let found = of("a.sh", script);
    assert_eq!(
        (found.train.as_ref(), found.preset.as_deref()),
        (None, Some("ultrachat"))
    );
    has(&found, &["regenerate.server=\"http://127.0.0.1:8000\""]);
    let without = script.replace("speculators regenerate-responses\n", "");
    let found = of("a.sh", &without);
    assert_eq!(found.train, Some("ultrachat_Qwen3-8B.jsonl".into()));
    lacks(&found, "regenerate");
}

#[test]
fn what_is_sampled_with_is_a_key_of_its_own_or_of_the_request() {
    let params = r#"{"stop": ["a.b=c"], "reasoning_effort": "low", "tool_choice": "none", "tools": [], "max_completion_tokens": 9, "max_tokens": 9}"#;
    let flags = format!("--sampling-params '{params}'");
    let found = of("a.sh", &regenerating(&flags, "none.jsonl", "none.jsonl"));
    let extra = found
        .settings
        .iter()
        .find(|set| set.starts_with("regenerate.extra="));
    let extra = extra.map(String::as_str).unwrap_or_default();
    for part in [
        "stop = [\"a.b=c\"]",
        "reasoning_effort = \"low\"",
        "tool_choice = \"none\"",
    ] {
        assert!(extra.contains(part), "{part}: {:?}", found.settings);
    }
    assert!(!extra.contains("max_"), "{extra}");
    tells(
        &found,
        &[
            "`regenerate.sampling_params = ",
            "no key for",
            "`tools`",
            "`max_completion_tokens`",
        ],
    );
}

#[test]
fn another_model_that_prepares_the_data_is_told() {
    let script = "speculators prepare-data --model Qwen/Qwen3-4B --data a.jsonl\n\
                  speculators train --verifier-name-or-path Qwen/Qwen3-8B\n";
    tells(
        &of("a.sh", script),
        &["`prepare_data.model = Qwen/Qwen3-4B`", "the target is"],
    );
    let found = of("a.sh", &script.replace("4B", "8B"));
    assert!(
        found
            .notes
            .iter()
            .all(|note| !note.contains("prepare_data"))
    );
    assert_eq!(found.carried, [3, 3], "{:?}", found.notes);
}

#[test]
fn xpress_has_the_defaults_of_speculators() {
    let found = speculators("xpress --mask-token-id 9 --num-layers 3 --full-attention-indices 0");
    assert_eq!(found.recipe, "dflash");
    has(
        &found,
        &[
            "drafter.markov=\"xpress\"",
            "drafter.markov_rank=256",
            "drafter.markov_d_ff=512",
            "drafter.markov_passes=6",
            "drafter.block_size=16",
            "drafter.mask_token=9",
            "drafter.layers=3",
            "drafter.window=2048",
            "drafter.causal=true",
            "drafter.full_layers=[0]",
            "drafter.captured_layers=[1, 17, 32]",
            "objective.divergence={ sum = { ce = 0.1, tv = 0.9 } }",
            "objective.teacher_weight=1.0",
            "objective.label_weight=0.0",
            "objective.slot_weights=\"exponential\"",
            "objective.decay_slots=4.0",
            "objective.consistency_weight=0.3",
            "objective.consistency_passes=3",
            "objective.guess_weight=0.6",
            "objective.divide_by_count=true",
        ],
    );
    lacks(&found, "drafter.sample_from_anchor");
    let found = speculators(
        "xpress --xpress-rank 64 --xpress-mlp-ratio 3 --num-jacobi-passes 4 --consistency-passes 0 --base-anchor-weight 0.2 \
         --loss-fn kl_div --ce-from-data --base-anchor-full-weight --sample-from-anchor",
    );
    has(
        &found,
        &[
            "drafter.markov_rank=64",
            "drafter.markov_d_ff=192",
            "drafter.markov_passes=4",
            "objective.consistency_weight=0.0",
            "objective.guess_weight=0.2",
            "objective.divergence=\"kl\"",
        ],
    );
    lacks(&found, "objective.consistency_passes");
    tells(
        &found,
        &["`ce_from_data = true`", "`objective.label_weight`"],
    );
    tells(
        &found,
        &[
            "`base_anchor_full_weight = true`",
            "`objective.slot_weights`",
        ],
    );
    tells(&found, &["`sample_from_anchor = true`", "XPress"]);
    tells(
        &speculators("xpress --consistency-passes many"),
        &["consistency_passes = many`", "a number"],
    );
}

#[test]
fn temperatures_that_are_drawn_are_told_unless_there_is_one() {
    let with = |shares: &str| {
        let flags = format!("--temperature '{shares}' --reasoning-effort '{{\"low\": 1.0}}'");
        of("a.sh", &regenerating(&flags, "none.jsonl", "none.jsonl"))
    };
    has(&with(r#"{"0.6": 1.0}"#), &["regenerate.temperature=0.6"]);
    let found = with(r#"{"0.6": 0.5, "1.0": 0.5}"#);
    lacks(&found, "regenerate.temperature");
    tells(&found, &["`regenerate.temperature = {", "draws its own"]);
    tells(
        &found,
        &["regenerate.reasoning_effort", "`data.template_variables`"],
    );
    tells(&with("warm"), &["expected temperatures"]);
}

#[test]
fn a_recipe_has_the_target_answer_what_the_script_has_it_answer() {
    let workspace = Workspace::new();
    let script = "speculators regenerate-responses --dataset train.jsonl --max-tokens 32 --outfile made.jsonl\n\
                  speculators prepare-data --data made.jsonl\n\
                  speculators train --verifier-name-or-path target --total-seq-len 64\n";
    workspace.write("a.sh", script);
    let init = |more: &str| {
        let line = format!("init --from a.sh --yes --name own --out own.toml{more}");
        workspace.run_line(line).succeeded();
        let recipe = workspace.text("own.toml");
        std::fs::remove_file(workspace.path("own.toml")).unwrap();
        recipe
    };
    let recipe = init("");
    for line in [
        "train = \"train.jsonl\"",
        "[regenerate]",
        "server = \"http://127.0.0.1:8000\"",
        "max_tokens = 32",
        "failed = \"drop\"",
    ] {
        assert!(recipe.contains(&format!("\n{line}\n")), "{line}: {recipe}");
    }
    // An option that says whose answers are trained on goes before.
    let kept = init(" --answers keep");
    assert!(!kept.contains("\n[regenerate]\n"), "{kept}");
    let own = init(" --answers http://b:2");
    assert!(own.contains("\nserver = \"http://b:2\"\n"), "{own}");
    // How they are sampled stays as in the script.
    let decoded = init(" --answers target");
    assert!(!decoded.contains("\nserver = "), "{decoded}");
    for recipe in [own, decoded] {
        for line in ["max_tokens = 32", "failed = \"drop\"", "retries = 3"] {
            assert!(recipe.contains(&format!("\n{line}\n")), "{line}: {recipe}");
        }
    }
}

#[test]
fn what_only_servers_are_asked_with_is_told_where_the_target_is_decoded() {
    let workspace = Workspace::new();
    let script = "speculators regenerate-responses --dataset train.jsonl --max-tokens 32 --sampling-params '{\"top_p\": 0.9, \"top_k\": 20}' \\\n  \
                  --outfile made.jsonl\nspeculators prepare-data --data made.jsonl\n\
                  speculators train --verifier-name-or-path target --total-seq-len 64\n";
    workspace.write("a.sh", script);
    let line = "init --from a.sh --answers target --yes --name own --out own.toml";
    let done = workspace.run_line(line).succeeded();
    let told = done.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        told.contains("`regenerate.extra={ top_k = 20 }`: only requests to a server"),
        "{told}"
    );
    let recipe = workspace.text("own.toml");
    assert!(
        recipe.contains("\ntop_p = 0.9\n") && !recipe.contains("\nextra = "),
        "{recipe}"
    );
}

#[test]
fn one_server_of_answers_and_of_hidden_states_is_told() {
    let workspace = Workspace::new();
    let told = |endpoint: &str| {
        let script = format!(
            "speculators regenerate-responses --endpoint {endpoint}/v1/chat/completions --dataset train.jsonl --outfile made.jsonl\n\
             speculators prepare-data --data made.jsonl\n\
             speculators train --verifier-name-or-path target --total-seq-len 64 --vllm-endpoint http://a:1/v1\n"
        );
        workspace.write("a.sh", script);
        let line = "init --from a.sh --yes --name own --out own.toml";
        let done = workspace.run_line(line).succeeded();
        std::fs::remove_file(workspace.path("own.toml")).unwrap();
        done.stderr
            .contains("`http://a:1` is in `regenerate.server` and in `target.server`")
    };
    assert!(told("http://a:1"));
    assert!(!told("http://b:2"));
}

#[test]
fn a_kind_that_is_written_otherwise_is_asked_about() {
    let script = "speculators train --verifier-name-or-path target --speculator-type Xpress\n";
    let refused = translate(script, std::path::Path::new("a.sh"))
        .err()
        .unwrap();
    let text = refused.to_string();
    assert!(text.ends_with("; did you mean `xpress`?"), "{text}");
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
    tells(&found, &["`xpress_rank = 8`", "only XPress reads it"]);
    for note in &found.notes {
        assert!(!note.contains("that is known"), "{note}");
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
