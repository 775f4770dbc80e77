//! Layers of multi-token prediction that are not put into a target's checkpoint, because engines would read them as others, and
//! commands that make no sense.
use std::fs;

use serde_json::{Value, json};
use spectrain_checkpoints::known::layer_beside_target;
use spectrain_checkpoints::{NamedTensor, write_folder};

use crate::engine_logits::in_shards;
use crate::fp8::tensors_in_fp8;
use crate::golden::path;
use crate::into_target::{config, layer_of, put, tensors, workspace};
use crate::samples::Folder;

/// What is said of a layer and a target, of which one was changed.
fn refused(
    kind: &str,
    change: impl FnOnce(&mut Value, &mut Vec<NamedTensor>),
    change_layer: impl FnOnce(&mut Value, &mut Vec<NamedTensor>),
) -> String {
    let root = tempfile::tempdir().unwrap();
    let [target, layer, whole] = ["target", "layer", "whole"].map(|name| root.path().join(name));
    let from = path(&format!("engines/{kind}"));
    let (mut said, mut all) = (config(&from), tensors(&from));
    change(&mut said, &mut all);
    write_folder(&target, &said, &all, &[]).unwrap();
    layer_of(&from, &layer, true);
    let (mut said, mut all) = (config(&layer), tensors(&layer));
    change_layer(&mut said, &mut all);
    fs::remove_dir_all(&layer).unwrap();
    write_folder(&layer, &said, &all, &[]).unwrap();
    let error = put(&layer, &target, &whole).err().unwrap().to_string();
    assert!(!whole.exists() && !root.path().join("whole.spectrain-partial").exists());
    error
}

fn is_told(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "no `{part}`: {error}");
    }
}

fn nothing(_: &mut Value, _: &mut Vec<NamedTensor>) {}

#[test]
fn what_engines_would_read_as_another_layer_is_refused() {
    let class = |name: &'static str| {
        move |said: &mut Value, _: &mut Vec<NamedTensor>| said["architectures"] = json!([name])
    };
    for (kind, name, known) in [
        (
            "mtp",
            "LlamaForCausalLM",
            "`MiMoForCausalLM` or `Qwen2ForCausalLM`",
        ),
        (
            "mtp_qwen",
            "Qwen3NextForCausalLM",
            "Qwen3.5 without experts",
        ),
        ("mtp_qwen_next", "Qwen3_5ForCausalLM", "Qwen3-Next"),
        ("mtp_glm", "DeepseekV3ForCausalLM", "`Glm4MoeForCausalLM`"),
        (
            "mtp_deepseek",
            "Glm4MoeForCausalLM",
            "`DeepseekV3ForCausalLM`",
        ),
    ] {
        is_told(
            &refused(kind, class(name), nothing),
            &["key `architectures`", known, name],
        );
    }
}

#[test]
fn a_layer_of_other_settings_or_shapes_than_its_target_s_is_refused() {
    let theta = refused("mtp_qwen", nothing, |said, _| {
        said["rope_parameters"]["rope_theta"] = json!(5e5)
    });
    is_told(
        &theta,
        &[
            "layer/config.json`: key `rope_parameters`",
            "10000.0",
            "500000.0",
            "target/config.json",
        ],
    );
    let fewer = refused("mtp_qwen_next", nothing, |said, _| {
        said["num_experts_per_tok"] = json!(1)
    });
    is_told(
        &fewer,
        &["key `num_experts_per_tok`: expected `2`", "found `1`"],
    );
    let two = refused(
        "mtp_glm",
        |said, _| said["num_nextn_predict_layers"] = json!(2),
        nothing,
    );
    is_told(
        &two,
        &["target/config.json`: key `num_nextn_predict_layers`: expected `1`, found `2`"],
    );
    let wide = refused("mtp_qwen", nothing, |_, all| {
        let fc = all
            .iter_mut()
            .find(|tensor| tensor.name == "mtp.fc.weight")
            .unwrap();
        *fc = NamedTensor::from_f32("mtp.fc.weight", [32, 60], vec![0.0; 32 * 60]);
    });
    is_told(
        &wide,
        &[
            "`mtp.fc.weight` in `",
            "expected [32, 64], as `mtp.fc.weight` of the target, found [32, 60]",
        ],
    );
    let narrow = refused("mtp_qwen_moe", nothing, |_, all| {
        let one = all
            .iter_mut()
            .find(|tensor| tensor.name.ends_with("experts.1.down_proj.weight"))
            .unwrap();
        *one = NamedTensor::from_f32(&*one.name, [16, 32], vec![0.0; 16 * 32]);
    });
    is_told(
        &narrow,
        &[
            "expected [5, 32, 16], as `mtp.layers.0.mlp.experts.down_proj` of the target",
            "[16, 32]",
        ],
    );
}

#[test]
fn tensors_that_only_one_side_has_are_named() {
    let missing = refused("mtp_deepseek", nothing, |_, all| {
        all.retain(|tensor| !tensor.name.ends_with("enorm.weight"));
    });
    is_told(
        &missing,
        &["layer`: missing tensors: `model.layers.2.enorm.weight`"],
    );
    let more = refused(
        "mtp_qwen",
        |_, all| {
            all.push(NamedTensor::from_f32(
                "mtp.layers.0.more.weight",
                [1],
                vec![1.0],
            ))
        },
        nothing,
    );
    is_told(&more, &["missing tensors: `mtp.layers.0.more.weight`"]);
    let fewer = refused(
        "mtp",
        |_, all| all.retain(|tensor| !tensor.name.ends_with("0.self_attn.q_proj.bias")),
        nothing,
    );
    is_told(
        &fewer,
        &["unexpected tensors: `model.mtp_layers.0.self_attn.q_proj.bias`"],
    );
    let root = tempfile::tempdir().unwrap();
    let eagle = Folder::of("eagle3", 0);
    let other = put(
        eagle.path(),
        &path("engines/mtp"),
        &root.path().join("whole"),
    );
    is_told(
        &other.err().unwrap().to_string(),
        &[
            "expected a layer of multi-token prediction",
            "found a drafter of the kind EAGLE-3",
        ],
    );
}

#[test]
fn quantised_layers_are_not_replaced_and_none_comes_into_a_quantised_target() {
    for kind in ["mtp_qwen", "mtp_deepseek"] {
        let root = tempfile::tempdir().unwrap();
        let [target, layer, whole, bare] =
            ["target", "layer", "whole", "bare"].map(|name| root.path().join(name));
        let from = path(&format!("engines/{kind}"));
        let (said, mut all) = tensors_in_fp8(&from);
        write_folder(&target, &said, &all, &[]).unwrap();
        layer_of(&from, &layer, true);
        let error = put(&layer, &target, &whole).err().unwrap().to_string();
        is_told(
            &error,
            &[
                "_proj.weight` in `",
                "expected BF16, F16 or F32",
                "found F8_E4M3",
            ],
        );
        let own = layer_beside_target(&{
            let shards = root.path().join("shards");
            in_shards(&said, &all, &shards);
            shards
        });
        let own = own.unwrap().unwrap();
        all.retain(|tensor| !own.contains(&tensor.name));
        write_folder(&bare, &said, &all, &[]).unwrap();
        let error = put(&layer, &bare, &whole).err().unwrap().to_string();
        is_told(
            &error,
            &["bare/config.json`: key `quantization_config`: expected nothing"],
        );
        assert!(!whole.exists());
    }
}

#[test]
fn commands_that_make_no_sense_are_refused() {
    let workspace = workspace();
    let run = |words: &str| workspace.run_line(format!("export {words}"));
    run("run --into target --out target").failed(&["`target` exists already"]);
    run("run --into target --out target/whole")
        .failed(&["`target/whole` is inside the folder `target`"]);
    run("run --out whole").misused_by_usage(&["--to"]);
    run("run --into target --to vllm --out whole").misused_by_usage(&["--into", "--to"]);
    run("run --to vllm --copy --out whole").misused_by_usage(&["--copy", "--to"]);
    fs::rename(workspace.path("target"), workspace.path("first")).unwrap();
    workspace.write_qwen2("target", |spec| spec.norm_epsilon = 1e-5);
    run("run --into target --out whole")
        .failed(&["was trained for `target`, which has other weights than `target`"]);
    run("runs/run/export/drafter --into target --out whole")
        .failed(&["other weights than `target`"]);
    run("runs/run/export/drafter --into first --out whole --copy").succeeded();
    let stdout = run("runs/run/export/drafter --into first --out again")
        .succeeded()
        .stdout;
    assert!(stdout.contains("vllm serve again "), "{stdout}");
    fs::remove_dir_all(workspace.path("runs/run/export")).unwrap();
    run("run --into first --out none").failed(&["has not exported what it has trained"]);
    assert!(!workspace.path("none").exists());
}
