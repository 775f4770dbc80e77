//! Settings of SpecForge one by one, and of TorchSpec, whose files look like its: what becomes of those that need more than a name.
use std::path::Path;

use spectrain::trainers::translate;

use crate::translated::{has, lacks, of, specforge, tells, torchspec};

#[test]
fn losses_of_specforge_are_told_where_they_differ() {
    let found = specforge("  lk_loss_type: lambda\n");
    has(&found, &["objective.divergence=\"lk_hybrid\""]);
    tells(
        &found,
        &["lk_loss_type = lambda`", "exp(−3 α)", "1 · exp(−1 · α)"],
    );
    let found = specforge("  lk_loss_type: lambda\n  kl_decay: 3.0\n");
    assert!(!found.notes.iter().any(|note| note.contains("lk_loss_type")));
    has(
        &specforge("  lk_loss_type: tv\n"),
        &["objective.divergence=\"tv\""],
    );
    let found = specforge("  strategy: mtp\n");
    assert_eq!(found.recipe, "mtp-qwen");
    lacks(&found, "objective.divergence");
    tells(
        &found,
        &["`training.strategy = mtp`", "cross-entropy with the text"],
    );
    // The sum of differences is twice the total variation.
    let found = specforge("  strategy: dspark\n");
    let weights = [
        "objective.teacher_weight=1.8",
        "objective.divergence=\"tv\"",
    ];
    has(&found, &weights);
}

#[test]
fn weights_of_steps_that_grow_are_all_the_same_here() {
    for (found, setting) in [
        (
            specforge("  strategy: mtp\n  mtp_step_weight_beta: 1.5\n"),
            "`training.mtp_step_weight_beta = 1.5`",
        ),
        (
            torchspec("", "  ploss_weights: [1.0, 1.2, 1.44]\n"),
            "`training.ploss_weights = [1.0,1.2,1.44]`",
        ),
    ] {
        has(&found, &["objective.decay=1.0"]);
        tells(&found, &[setting, "counts more than the one before"]);
    }
    let found = specforge("  strategy: mtp\n  mtp_step_weight_beta: 0.6\n");
    has(&found, &["objective.decay=0.6"]);
    lacks(&specforge("  strategy: mtp\n"), "objective.decay");
}

#[test]
fn settings_of_specforges_servers_are_told_together() {
    let text = "model:\n  target_model_path: Qwen/Qwen3-8B\n  sglang_page_size: 1\ndata:\n  prompts_path: tokens.jsonl\n  max_prompts: 100\n\
                runtime:\n  producer_lease: 4\ndeployment:\n  mode: disaggregated\n  trainer:\n    nproc_per_node: 2\n  disaggregated:\n    \
                control_dir: c\n    backend: mooncake\ntracking:\n  report_to: wandb\n  wandb_project: p\nprofiling:\n  start_step: 3\n";
    let found = of("a.yaml", text);
    assert_eq!(found.train, Some("tokens.jsonl".into()));
    let settings = ["data.max_samples=100", "train.gradient_accumulation=2"];
    has(&found, &settings);
    tells(
        &found,
        &[
            "`deployment.disaggregated.backend = mooncake`",
            "`deployment.disaggregated.control_dir = c`",
            "starts no servers",
        ],
    );
    tells(&found, &["`model.sglang_page_size = 1`", "SGLang server"]);
    tells(
        &found,
        &[
            "`tracking.report_to = wandb`",
            "`tracking.wandb_project = p`",
        ],
    );
    for note in &found.notes {
        assert!(!note.contains("that is known"), "{note}");
    }
    // A flag of the old scripts.
    let script = "python train_eagle3.py --target-model-path Qwen/Qwen3-8B --train-data-path a.jsonl --sglang-page-size 1\n";
    tells(&of("a.sh", script), &["`model.sglang_page_size = 1`"]);
}

#[test]
fn scripts_of_specforge_have_defaults_and_flags_of_their_own() {
    let script = |program: &str, flags: &str| {
        let script = format!(
            "python {program} --target-model-path Qwen/Qwen3-8B --train-data-path a.jsonl {flags}\n"
        );
        of("a.sh", &script)
    };
    let found = script("train_dflash.py", "--learning-rate 1e-3");
    let set = [
        "train.epochs=6",
        "train.learning_rate=0.001",
        "data.max_length=3072",
        "train.max_grad_norm=1.0",
    ];
    has(&found, &set);
    // The target, the data and the rate: what the script does by itself nobody gave.
    assert_eq!(found.carried, [3, 3], "{:?}", found.notes);
    let found = script(
        "train_dspark.py",
        "--l1-loss-alpha 0.5 --no-confidence-head",
    );
    let set = [
        "drafter.confidence=false",
        "drafter.markov_rank=256",
        "objective.decay_slots=4.0",
        "objective.teacher_weight=1.0",
    ];
    has(&found, &set);
    let found = script("train_peagle.py", "--draft-accumulation-steps 3");
    let set = [
        "drafter.layers=4",
        "objective.keep=0.7",
        "train.epochs=10",
        "train.gradient_accumulation=3",
        "seed=0",
    ];
    has(&found, &set);
}

#[test]
fn files_of_torchspec_are_no_files_of_specforge() {
    let found = torchspec(
        "",
        "  ploss_weights: [1.0, 0.7, 0.49]\n  loss_type: lk_lambda\n  lk_eta: 2.0\n",
    );
    assert_eq!(found.recipe, "eagle3");
    has(
        &found,
        &[
            "data.min_trained_tokens=32",
            "train.min_lr_ratio=0.1",
            "train.gradient_accumulation=4",
            "objective.decay=0.7",
            "objective.divergence=\"lk_hybrid\"",
            "train.batch_tokens=16384",
        ],
    );
    tells(&found, &["`training.loss_type = lk_lambda`", "exp(−2 · α)"]);
    tells(
        &found,
        &[
            "`inference.inference_engine_type = vllm`",
            "`inference.vllm.tp_size = 2`",
        ],
    );
    assert_eq!(found.train, Some("../data/a.jsonl".into()));
}

#[test]
fn the_file_of_a_drafter_says_which_one_torchspec_trains() {
    let dspark = "  draft_model_config: torchspec/config/dspark_draft_config.json\n";
    let found = torchspec(dspark, "  dspark_l1_loss_alpha: 0.5\n");
    has(
        &found,
        &[
            "objective.teacher_weight=1.0",
            "objective.slot_weights=\"exponential\"",
            "drafter.sample_from_anchor=true",
        ],
    );
    let dflash = dspark.replace("dspark", "dflash");
    let found = torchspec(&dflash, "  dflash_loss_objective: dpace\n");
    let settings = ["objective.slot_weights=\"d_pace\"", "drafter.block_size=16"];
    has(&found, &settings);
    let refused = "model:\n  target_model_path: a\n  draft_model_config: xpress.json\ndataset:\n  prompt_key: x\n";
    let refused = translate(refused, Path::new("a.yaml"));
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("calls `xpress.json`"), "{error}");
}
