//! Settings of SpecForge one by one, and of TorchSpec, whose files look like its: what becomes of those that need more than a name.
use std::path::Path;

use spectrain::trainers::translate;

use crate::translated::{has, lacks, of, specforge, tells, torchspec};

#[test]
fn losses_of_specforge_are_told_where_they_differ() {
    for (decay, divergence) in [
        ("", "{ lk_hybrid = 1.0 }"),
        ("  kl_decay: 3.0\n", "\"lk_hybrid\""),
        ("  kl_decay: 2\n", "{ lk_hybrid = 2.0 }"),
    ] {
        let found = specforge(&format!("  lk_loss_type: lambda\n{decay}"));
        has(&found, &[&format!("objective.divergence={divergence}")]);
        assert!(!found.notes.iter().any(|note| note.contains("lk_loss_type")));
    }
    // A scale of its own there is none of, nor a share that stays.
    let found = specforge("  lk_loss_type: lambda\n  kl_scale: 0.5\n");
    has(&found, &["objective.divergence={ lk_hybrid = 1.0 }"]);
    tells(
        &found,
        &["lk_loss_type = lambda`", "exp(−1 α)", "0.5 · exp(−1 · α)"],
    );
    let found = specforge("  lk_loss_type: lambda\n  kl_decay: 0\n");
    has(&found, &["objective.divergence=\"lk_hybrid\""]);
    tells(&found, &["exp(−3 α)", "1 · exp(−0 · α)"]);
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
fn the_weight_of_a_selector_rises_where_specforge_raises_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = r#"{"dflash_config": {"selector_rank": 64}}"#;
    std::fs::write(folder.path().join("draft.json"), file).unwrap();
    let with = |training: &str| {
        let text = format!(
            "model:\n  target_model_path: Qwen/Qwen3-8B\n  draft_model_config: draft.json\ndata:\n  train_data_path: a.jsonl\n\
             training:\n  strategy: dflash\n  dflash2_selector_loss_alpha: 0.5\n{training}"
        );
        translate(&text, &folder.path().join("a.yaml")).unwrap()
    };
    let rises = |end: &str, from: &str, until: &str| {
        format!(
            "objective.selector_weight={{ start = 0.0, end = {end}, from = {from}, until = {until} }}"
        )
    };
    let shares = "  dflash2_selector_warmup_ratio: 0.1\n  dflash2_selector_ramp_ratio: 0.2\n";
    for (training, expected) in [
        ("", "objective.selector_weight=0.5".to_owned()),
        (shares, rises("0.5", "0.1", "0.3")),
        // Of the steps that the schedule is made for, of which half are trained.
        (
            "  total_steps: 2000\n  max_steps: 1000\n",
            "objective.selector_weight=0.5".to_owned(),
        ),
        (
            "  dflash2_selector_ramp_ratio: 0.25\n  total_steps: 2000\n  max_steps: 1000\n",
            rises("0.5", "0.0", "0.5"),
        ),
    ] {
        let found = with(training);
        has(&found, &[&expected, "objective.inject=false"]);
        let told = found.notes.iter().any(|note| note.contains("selector"));
        assert!(!told, "{:?}", found.notes);
    }
    let found = with(&format!("{shares}  total_steps: 2000\n"));
    has(&found, &[&rises("0.5", "0.1", "0.3")]);
    tells(
        &found,
        &[
            "`training.dflash2_selector_loss_alpha = 0.5`",
            "total_steps",
        ],
    );
}

#[test]
fn a_rate_of_torchspec_that_falls_at_the_end_falls_as_it_says() {
    let dflash = "  draft_model_config: dflash.json\n";
    for (model, training, share, shape) in [
        ("", "", "0.2", "cosine"),
        (
            "",
            "  lr_wsd_decay_ratio: 0.1\n  lr_wsd_decay_style: minus_sqrt\n",
            "0.1",
            "minus_sqrt",
        ),
        (dflash, "", "0.2", "cosine"),
        (
            dflash,
            "  wsd_decay_ratio: 0.3\n  wsd_decay_style: linear\n",
            "0.3",
            "linear",
        ),
    ] {
        let found = torchspec(model, &format!("  lr_decay_style: WSD\n{training}"));
        let settings = [
            "train.schedule=\"wsd\"".to_owned(),
            format!("train.decay_ratio={share}"),
            format!("train.decay_shape=\"{shape}\""),
        ];
        has(&found, &settings.each_ref().map(String::as_str));
        let told = found.notes.iter().any(|note| note.contains("wsd"));
        assert!(!told, "{:?}", found.notes);
        // Another schedule has neither.
        let found = torchspec(model, training);
        has(&found, &["train.schedule=\"cosine\""]);
        lacks(&found, "train.decay");
    }
    // EAGLE-3 alone reads these.
    let found = torchspec(
        dflash,
        "  lr_decay_style: WSD\n  lr_wsd_decay_style: linear\n",
    );
    has(&found, &["train.decay_shape=\"cosine\""]);
    tells(
        &found,
        &["`training.lr_wsd_decay_style = linear`", "`dflash`"],
    );
    let found = torchspec("", "  lr_decay_style: WSD\n  lr_wsd_decay_style: steep\n");
    tells(&found, &["lr_wsd_decay_style = steep`", "`minus_sqrt`"]);
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
            "objective.divergence={ lk_hybrid = 2.0 }",
            "train.batch_tokens=16384",
        ],
    );
    assert!(!found.notes.iter().any(|note| note.contains("lk_lambda")));
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
fn latent_attention_of_torchspec_is_that_of_the_recipe() {
    let folder = tempfile::tempdir().unwrap();
    let text = "model:\n  target_model_path: a\n  draft_model_config: dr.json\ndataset:\n  train_data_path: a.jsonl\n";
    let read = |sizes: &str| {
        let class =
            "\"architectures\": [\"Eagle3DeepseekV2ForCausalLM\"], \"num_hidden_layers\": 1";
        std::fs::write(
            folder.path().join("dr.json"),
            format!("{{{class}, {sizes}}}"),
        )
        .unwrap();
        translate(text, &folder.path().join("a.yaml")).unwrap()
    };
    let found = read(
        "\"kv_lora_rank\": 256, \"q_lora_rank\": 768, \"v_head_dim\": 96, \"num_attention_heads\": 64, \"hidden_size\": 7168, \
         \"fc_norm\": true, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 64.0, \"mscale_all_dim\": 1.0}",
    );
    let settings = [
        "drafter.latent.kv_rank=256",
        "drafter.latent.q_rank=768",
        "drafter.latent.d_fixed=128",
        "drafter.latent.d_turned=64",
        "drafter.latent.d_value=96",
        "drafter.fc_norm=true",
    ];
    has(&found, &settings);
    assert_eq!(found.recipe, "eagle3");
    lacks(&found, "drafter.d_head");
    let scale = |found: &spectrain::trainers::Translated| {
        let mut settings = found.settings.iter();
        let scale = settings.find_map(|set| set.strip_prefix("drafter.latent.scale="));
        scale.unwrap().parse::<f64>().unwrap()
    };
    assert!((scale(&found) - (1.0 + 0.1 * 64f64.ln()).powi(2)).abs() < 1e-9);
    let found = read("\"kv_lora_rank\": 256");
    assert_eq!(scale(&found), 1.0);
    has(
        &found,
        &["drafter.latent.q_rank=1536", "drafter.latent.d_value=128"],
    );
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
    // Of a file that is here it is known what is missing.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("dr.json"), "{\"num_hidden_layers\": 2}").unwrap();
    let text = "model:\n  target_model_path: a\n  draft_model_config: dr.json\ndataset:\n  prompt_key: x\n";
    let refused = translate(text, &folder.path().join("a.yaml"));
    let error = refused.err().unwrap().to_string();
    let part = "`model.draft_model_config = dr.json`: the file lacks `architectures`";
    assert!(error.contains(part), "{error}");
}
