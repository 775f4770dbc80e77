//! Targets and layers whose matrices are in FP8: read as the BF16 that they stand for, wherever a folder is read.
use std::path::Path;

use serde_json::{Value, json};
use spectrain::families::shipped::Shipped;
use spectrain_checkpoints::folder::read_safetensors;
use spectrain_checkpoints::known::layer_beside_target;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, write_folder};
use spectrain_models::deepseek_mtp::DeepseekMtp;
use spectrain_models::device::test_device;
use spectrain_models::qwen_mtp::QwenMtp;
use spectrain_models::weights::{export, host_f32};
use spectrain_models::{
    Capture, Layout, Target as _, Transformer, load_first_layers, load_parts, load_target,
};

use crate::engine_logits::in_shards;
use crate::golden::path;
use crate::workspace::{VOCAB, Workspace};

/// Rows and columns that share a scale.
const BLOCK: [usize; 2] = [24, 10];

fn quantisation() -> Value {
    json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": BLOCK})
}

/// 32 bits have an exponent of eight bits, with a bias of 127 in place of 7, and the fraction behind it as here.
fn e4m3(byte: u8) -> f32 {
    let bits = u32::from(byte & 0x80) << 24 | u32::from(byte & 0x7f) << 20;
    f32::from_bits(bits) * 2f32.powi(120)
}

/// The eight bits and the scales of a matrix.
fn in_eight_bits(matrix: &NamedTensor) -> [NamedTensor; 2] {
    let (values, [rows, columns]) = (
        matrix.to_f32().unwrap(),
        matrix.shape[..].try_into().unwrap(),
    );
    let [down, across] = [
        usize::div_ceil(rows, BLOCK[0]),
        usize::div_ceil(columns, BLOCK[1]),
    ];
    let of = |at: usize| at / columns / BLOCK[0] * across + at % columns / BLOCK[1];
    let mut scales = vec![f32::MIN_POSITIVE; down * across];
    for (at, value) in values.iter().enumerate() {
        scales[of(at)] = scales[of(at)].max(value.abs() / 448.0);
    }
    let numbers: Vec<u8> = (0..=255).filter(|byte| byte & 0x7f != 0x7f).collect();
    let nearest = |wanted: f32| {
        let far = |byte: &&u8| (e4m3(**byte) - wanted).abs();
        *numbers
            .iter()
            .min_by(|a, b| far(a).total_cmp(&far(b)))
            .unwrap()
    };
    let scaled = values
        .iter()
        .enumerate()
        .map(|(at, value)| value / scales[of(at)]);
    let elements = NamedTensor {
        dtype: DType::F8E4M3,
        bytes: scaled.map(nearest).collect(),
        ..matrix.clone()
    };
    let name = format!("{}_scale_inv", matrix.name);
    [
        elements,
        NamedTensor::from_f32(name, [down, across], scales),
    ]
}

/// The tensors of a folder, the matrices of its layers in FP8.
pub fn tensors_in_fp8(from: &Path) -> (Value, Vec<NamedTensor>) {
    let whole = ModelFolder::open(from).unwrap();
    let mut config = whole.config().clone();
    config["quantization_config"] = quantisation();
    let in_fp8 = |name: &str| {
        let tensor = whole.read(name).unwrap();
        match name.ends_with("_proj.weight") && tensor.shape.len() == 2 {
            true => in_eight_bits(&tensor).to_vec(),
            false => vec![tensor],
        }
    };
    let tensors = whole.tensors().flat_map(|info| in_fp8(&info.name));
    (config, tensors.collect())
}

/// The same folder with the numbers that it stands for, in BF16.
fn widened(from: &Path, to: &Path) {
    let narrow = ModelFolder::open(from).unwrap();
    let mut config = narrow.config().clone();
    config
        .as_object_mut()
        .unwrap()
        .remove("quantization_config");
    let read = narrow
        .tensors()
        .map(|info| narrow.read(&info.name).unwrap());
    write_folder(to, &config, &read.collect::<Vec<_>>(), &[]).unwrap();
}

fn states(target: &Transformer) -> Vec<f32> {
    let device = target.device();
    let ids = burn::tensor::Tensor::<1, burn::tensor::Int>::arange(0..61, &device).unsqueeze::<2>();
    let features = target.features(ids, &Layout::whole([1, 61], &device), &Capture::default());
    host_f32(features.last)
}

#[test]
fn scales_may_be_in_another_shard_than_their_matrices() {
    let (device, folder) = (test_device(), path("targets/qwen3_fp8"));
    let whole = load_target(&ModelFolder::open(&folder).unwrap(), &device, DType::F32).unwrap();
    let first = load_first_layers(&folder, usize::MAX, &device, DType::F32).unwrap();
    assert_eq!(states(&whole), states(&first));
}

fn starts_from_eight_bits<D: Shipped>(kind: &str) {
    let (device, root) = (test_device(), tempfile::tempdir().unwrap());
    let [narrow, all, wide] = ["narrow", "all", "wide"].map(|name| root.path().join(name));
    let parts = load_parts(&path(&format!("engines/{kind}")), &device, DType::F32).unwrap();
    let (config, tensors) = tensors_in_fp8(&path(&format!("engines/{kind}")));
    in_shards(&config, &tensors, &narrow);
    for file in ["model-2.safetensors", "model-3.safetensors"] {
        let inside = read_safetensors(&narrow.join(file)).unwrap();
        assert!(inside.len() > 4, "{kind}, {file}");
    }
    let own = layer_beside_target(&narrow).unwrap().unwrap();
    assert!(
        own.iter().any(|name| name.ends_with("_scale_inv")),
        "{own:?}"
    );
    write_folder(&all, &config, &tensors, &[]).unwrap();
    widened(&all, &wide);
    let [narrow, wide] = [narrow, wide].map(|folder| {
        let drafter = D::open(&folder, None, &parts, &device).unwrap();
        export(&drafter)
    });
    assert_eq!(narrow, wide, "{kind}");
}

#[test]
fn a_layer_in_the_shards_of_its_target_may_be_in_fp8() {
    for kind in ["mtp_qwen", "mtp_qwen_next"] {
        starts_from_eight_bits::<QwenMtp>(kind);
    }
    for kind in ["mtp_glm", "mtp_deepseek"] {
        starts_from_eight_bits::<DeepseekMtp>(kind);
    }
}

#[test]
fn a_target_in_fp8_is_trained_for_and_judged_as_the_numbers_that_it_stands_for() {
    let workspace = Workspace::new();
    workspace.write_target("wide", VOCAB);
    let [wide, narrow, target] = ["wide", "narrow", "target"].map(|name| workspace.path(name));
    let (config, tensors) = tensors_in_fp8(&wide);
    write_folder(&narrow, &config, &tensors, &[]).unwrap();
    let drafter = |run: &str, change: &dyn Fn(&Path)| {
        std::fs::remove_dir_all(&target).ok();
        change(&target);
        for name in [
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ] {
            std::fs::copy(wide.join(name), target.join(name)).ok();
        }
        let name = format!("name={run}");
        workspace
            .run(&["recipe", "recipe.toml", "--set", &name])
            .succeeded();
        let folder = workspace.path(format!("runs/{run}/export/drafter/model.safetensors"));
        let report = workspace.json(&format!("runs/{run}/evaluate/report.json"));
        assert_eq!(report["lossless"]["greedy_mismatches"], 0, "{run}");
        (std::fs::read(folder).unwrap(), report["settings"].clone())
    };
    let of_fp8 = drafter("fp8", &|to| {
        write_folder(to, &config, &tensors, &[]).unwrap();
    });
    let of_bf16 = drafter("bf16", &|to| widened(&narrow, to));
    assert!(of_fp8.0 == of_bf16.0, "another drafter");
    assert_eq!(
        of_fp8.1[0]["overall"]["tau"],
        of_bf16.1[0]["overall"]["tau"]
    );
}

/// What is said of a target in FP8 with one change.
fn refused(change: impl FnOnce(&mut Value, &mut Vec<NamedTensor>)) -> String {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("target");
    let (mut config, mut tensors) = tensors_in_fp8(&path("targets/qwen3"));
    change(&mut config, &mut tensors);
    write_folder(&folder, &config, &tensors, &[]).unwrap();
    let loaded = ModelFolder::open(&folder).map_err(|error| error.to_string());
    let loaded = loaded.and_then(|folder| {
        load_target(&folder, &test_device(), DType::F32).map_err(|error| error.to_string())
    });
    loaded.err().unwrap()
}

/// A tensor by the end of its name.
fn named<'a>(tensors: &'a mut [NamedTensor], end: &str) -> &'a mut NamedTensor {
    tensors
        .iter_mut()
        .find(|tensor| tensor.name.ends_with(end))
        .unwrap()
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let other = refused(|config, tensors| {
        config["quantization_config"] = json!({"quant_method": "awq", "bits": 4});
        tensors.retain(|tensor| !tensor.name.ends_with("_scale_inv"));
    });
    assert!(
        other.contains("`quantization_config`")
            && other.contains("expected weights in FP8 (E4M3), or none that are quantised"),
        "{other}"
    );
    let shape = refused(|_, tensors| {
        let scales = named(tensors, "layers.1.self_attn.q_proj.weight_scale_inv");
        *scales = NamedTensor::from_f32(scales.name.clone(), [2, 5], vec![1.0; 10]);
    });
    assert_eq!(
        shape.split_once(": ").unwrap().1,
        "expected a scale for the matrix [40, 24], for each block of 24 × 10, or for each of its rows, found scales of the shape [2, 5]",
    );
    assert!(shape.starts_with("tensor `model.layers.1.self_attn.q_proj.weight_scale_inv` in `"));
    let nothing = refused(|_, tensors| {
        named(tensors, "layers.1.mlp.up_proj.weight").bytes[5] = 0x7f;
    });
    assert!(
        nothing.contains("`model.layers.1.mlp.up_proj.weight`")
            && nothing.contains("element 5 is not a finite number"),
        "{nothing}"
    );
    let alone = refused(|_, tensors| {
        tensors.retain(|tensor| {
            !tensor
                .name
                .ends_with("layers.1.mlp.up_proj.weight_scale_inv")
        });
    });
    assert!(
        alone.contains("model.layers.1.mlp.up_proj.weight") && alone.contains("F8_E4M3"),
        "{alone}"
    );
}
