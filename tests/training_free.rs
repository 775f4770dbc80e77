//! Drafters without training, all of them: they lose nothing, the estimator counts what a decoder counts where it can, and the
//! program reports them beside a trained one or alone.
use rand::{SeedableRng, rngs::StdRng};
use serde_json::Value;
use spectrain_eval::{
    DecodeSettings, Decoder, Estimable, Generation, OwnText, VerifierChoice, estimate,
};
use spectrain_models::device::test_device;
use spectrain_models::{
    Capture, Children, DraftShape, Proposer, Sampling, StaticTree, TrainingFree, Transformer,
};

use crate::tiny;
use crate::workspace::Workspace;

const NEW_TOKENS: usize = 48;

fn all() -> [TrainingFree; 3] {
    ["prompt-lookup", "token-recycling", "early-layers:4"].map(|name| name.parse().unwrap())
}

fn likeliest(tree: StaticTree) -> DraftShape {
    DraftShape::Static {
        tree,
        children: Children::Top,
    }
}

fn shapes(drafter: &TrainingFree) -> Vec<DraftShape> {
    let chains = [
        DraftShape::Chain { length: 4 },
        likeliest(StaticTree::chain(4)),
    ];
    let tree = drafter.tree().map(likeliest);
    chains.into_iter().chain(tree).collect()
}

fn settings(shape: &DraftShape, temperature: f64) -> DecodeSettings {
    DecodeSettings {
        max_new_tokens: NEW_TOKENS,
        draft: shape.clone(),
        sampling: Sampling::at(temperature),
        stop: Vec::new(),
        shadow: None,
    }
}

fn prompts() -> Vec<Vec<u32>> {
    let repeats = (0..60).map(|at| 1 + at % 7).collect();
    let differs = (0..37).map(|at| 1 + at * 17 % 43).collect();
    vec![repeats, differs, vec![5]]
}

fn decoded(
    target: &Transformer,
    proposer: &mut dyn Proposer,
    prompt: &[u32],
    settings: &DecodeSettings,
) -> Generation {
    let capture = Capture::default();
    let verifier = VerifierChoice::Exact.at(&settings.sampling);
    let mut rng = StdRng::seed_from_u64(5);
    Decoder::new(target, &capture)
        .generate(proposer, verifier, prompt, settings, &mut rng)
        .unwrap()
}

#[test]
fn none_of_them_changes_greedy_output_and_each_has_tokens_accepted() {
    lossless(&tiny::target(&test_device()));
}

#[test]
fn nor_do_they_where_the_target_has_experts() {
    lossless(&tiny::mixture(&test_device()));
}

fn lossless(target: &Transformer) {
    let capture = Capture::default();
    for drafter in all() {
        let mut proposer = drafter.proposer(target).unwrap();
        for shape in shapes(&drafter) {
            let settings = settings(&shape, 0.0);
            let mut accepted = 0;
            for prompt in prompts() {
                let found = decoded(target, proposer.as_mut(), &prompt, &settings);
                let mut rng = StdRng::seed_from_u64(0);
                let plain = Decoder::new(target, &capture).plain(&prompt, &settings, &mut rng);
                assert_eq!(found.tokens, plain.unwrap().tokens, "{drafter} {shape:?}");
                accepted += found.passes.iter().map(|pass| pass.accepted).sum::<usize>();
            }
            assert!(accepted > 10, "{drafter} {shape:?}: {accepted}");
        }
    }
}

#[test]
fn those_that_follow_the_text_are_estimated_pass_by_pass_as_they_are_decoded() {
    let target = tiny::target(&test_device());
    for drafter in all() {
        let mut proposer = drafter.proposer(&target).unwrap();
        let recycles = drafter.tree().is_some();
        assert_eq!(proposer.follows_text(), !recycles, "{drafter}");
        if recycles {
            continue;
        }
        for (temperature, prompt) in [0.0, 1.0].into_iter().flat_map(|temperature| {
            prompts()
                .into_iter()
                .map(move |prompt| (temperature, prompt))
        }) {
            let shape = likeliest(StaticTree::chain(4));
            let settings = settings(&shape, temperature);
            let mut found = decoded(&target, proposer.as_mut(), &prompt, &settings);
            let capture = Capture::default();
            let text =
                OwnText::read(&target, &capture, &prompt, &found.tokens, NEW_TOKENS).unwrap();
            let verifier = VerifierChoice::Exact.at(&settings.sampling);
            let draft = Estimable::of(&shape, &settings.sampling, verifier).unwrap();
            let expected = estimate(proposer.as_ref(), &text, &draft).unwrap();
            for pass in &mut found.passes {
                (pass.seconds, pass.together) = Default::default();
            }
            assert_eq!(expected.passes, found.passes, "{drafter} at {temperature}");
        }
    }
}

#[test]
fn layers_that_a_target_has_not_are_refused() {
    let target = tiny::target(&test_device());
    for layers in [0, 6] {
        let error = TrainingFree::early_layers(layers)
            .proposer(&target)
            .err()
            .unwrap();
        let expected = format!("expected 1 to 5 of the target's 6 layers, found {layers}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

fn evaluated(workspace: &Workspace, more: &[&str]) -> Value {
    let words = [
        "evaluate",
        "--target",
        "target",
        "--prompts",
        "eval.jsonl",
        "--count",
        "3",
        "--out",
        "judged",
        "--outputs",
        "outputs.jsonl",
        "--draft-length",
        "2",
        "--max-new-tokens",
        "12",
    ];
    workspace.run(&[&words[..], more].concat()).succeeded();
    serde_json::from_str(&workspace.text("judged/report.json")).unwrap()
}

fn told(report: &Value) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let settings = report["settings"].as_array().unwrap().iter();
    settings
        .map(|setting| {
            let draft = &setting["draft"];
            let parts = [&setting["drafter"], &draft["shape"], &draft["tokens"]].map(word);
            format!("{} at {}", parts.join(" "), setting["temperature"])
        })
        .collect()
}

const FREE: [&str; 6] = [
    "--training-free",
    "prompt-lookup",
    "--training-free",
    "token-recycling",
    "--training-free",
    "{ name = \"early-layers\", layers = 1 }",
];

#[test]
fn they_stand_beside_a_trained_drafter_in_every_table() {
    let workspace = Workspace::finished();
    let report = evaluated(&workspace, &[&FREE[..], &["--drafter", "run"]].concat());
    let expected = [
        "- chain - at 0.0",
        "prompt-lookup chain - at 0.0",
        "token-recycling chain - at 0.0",
        "token-recycling static - at 0.0",
        "early-layers:1 chain - at 0.0",
        "- chain drawn at 1.0",
        "- chain likeliest at 1.0",
        "prompt-lookup chain likeliest at 1.0",
        "token-recycling chain likeliest at 1.0",
        "token-recycling static - at 1.0",
        "early-layers:1 chain drawn at 1.0",
        "early-layers:1 chain likeliest at 1.0",
    ];
    assert_eq!(told(&report), expected);
    assert_eq!(report["lossless"]["greedy_mismatches"], 0);
    assert_eq!(report["lossless"]["greedy_outputs"], 15);
    for setting in report["settings"].as_array().unwrap() {
        let recycles = setting["drafter"] == "token-recycling";
        assert_eq!(setting["estimate"].is_null(), recycles, "{setting}");
        if setting["temperature"] == 0.0 && !recycles {
            assert_eq!(setting["estimate"]["differing_outputs"], 0, "{setting}");
        }
    }
    let row = "prompt-lookup, T=0, greedy, chain 2";
    for file in ["judged/report.md", "judged/report.html"] {
        assert!(workspace.text(file).contains(row), "{file}");
    }
    let lines = workspace.text("outputs.jsonl");
    let of_lookup = lines.matches("\"drafter\":\"prompt-lookup\"").count();
    assert_eq!(of_lookup, 6, "{lines}");
    let words = ["report", "judged", "--csv", "rows.csv"];
    workspace.run(&words).succeeded();
    assert!(
        workspace
            .text("rows.csv")
            .contains(",target,token-recycling,0,")
    );
}

#[test]
fn block_verification_decodes_drawn_chains_and_refuses_those_that_draw_none() {
    let workspace = Workspace::finished();
    let block = ["--drafter", "run", "--verifier", "block"];
    let report = evaluated(&workspace, &[&block[..], &FREE[4..]].concat());
    let expected = [
        "- chain - at 0.0",
        "early-layers:1 chain - at 0.0",
        "- chain drawn at 1.0",
        "early-layers:1 chain drawn at 1.0",
    ];
    assert_eq!(told(&report), expected);
    let words = "evaluate --target target --drafter run --prompts eval.jsonl --verifier block";
    let refused = |more: &str, found: &str| {
        let outcome = workspace.run_line(format!("{words} {more}"));
        outcome.misused(&[
            "`verifier`",
            "`block` judges only chains of drawn tokens",
            found,
        ]);
    };
    refused("--training-free prompt-lookup", "`prompt-lookup`");
    refused("--draft chain:2,tokens=likeliest", "`drafts`");
}

#[test]
fn drafts_of_other_shapes_are_for_a_trained_drafter_and_leave_them_their_chains() {
    let workspace = Workspace::finished();
    let words = "evaluate --target target --prompts eval.jsonl --count 1 --max-new-tokens 4 --temperature 0 \
                 --training-free prompt-lookup --draft dynamic:4,depth=2 --out judged";
    let alone = workspace.run_line(words);
    alone.misused_by_usage(&["--drafter <DRAFTER>"]);
    workspace
        .run_line(format!("{words} --drafter run"))
        .succeeded();
    let report = workspace.json("judged/report.json");
    let expected = ["- dynamic - at 0.0", "prompt-lookup chain - at 0.0"];
    assert_eq!(told(&report), expected);
}

#[test]
fn they_need_no_trained_drafter() {
    let workspace = Workspace::finished();
    let report = evaluated(&workspace, &FREE[..2]);
    let expected = [
        "prompt-lookup chain - at 0.0",
        "prompt-lookup chain likeliest at 1.0",
    ];
    assert_eq!(told(&report), expected);
    let table = workspace.text("judged/report.md");
    assert!(
        table.starts_with("drafters without training for `target`"),
        "{table}"
    );
    let outcome = workspace.run(&["evaluate", "--target", "target", "--prompts", "eval.jsonl"]);
    outcome.misused(&["--drafter"]);
    let twice = ["evaluate", "--target", "target", "--prompts", "eval.jsonl"];
    let twice = [&twice[..], &FREE[..2], &FREE[..2]].concat();
    workspace
        .run(&twice)
        .misused(&["`training_free`", "found `prompt-lookup` twice"]);
}
