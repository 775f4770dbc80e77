use super::*;
use crate::runtime::pair::Pair;
use crate::stages::export::ground::OnPrompts;
use std::path::Path;

use burn::prelude::Device;
use serde_json::{Value, json};
use spectrain_checkpoints::{ModelFolder, seal, write_folder};
use spectrain_models::RandomWeights;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};

use crate::families::drafter_folder::samples::vocabulary;
use crate::families::family::Writing;
use crate::families::registry::open_drafter;
use crate::families::shipped::Shipped;
use crate::families::trained::write_usual;

/// What is changed, in the configuration and in the tensors.
type Changed = (&'static str, fn(&mut Value), fn(&mut Vec<NamedTensor>));

fn same(_: &mut Vec<NamedTensor>) {}

fn none(_: &mut Value) {}

/// Captured layers in both of their keys.
fn set_layers(config: &mut Value, layers: [u64; 2]) {
    let key = "eagle_aux_hidden_state_layer_ids";
    config[key] = json!(layers.map(|layer| layer + 1));
    config["eagle_config"][key] = json!(layers);
}

fn double_rope(config: &mut Value) {
    let theta = 2.0 * config["rope_theta"].as_f64().unwrap();
    config["rope_theta"] = json!(theta);
    config["rope_parameters"]["rope_theta"] = json!(theta);
}

fn shift_vocabulary(t: &mut [NamedTensor]) {
    let find = |name: &str| t.iter().position(|t| t.name == name).unwrap();
    let (d2t, t2d) = (find("d2t"), find("t2d"));
    let mut marks = t[t2d].to_bool().unwrap();
    // The next token in the place of the last one, or the one before in that of the first.
    let ids: Vec<usize> = (0..marks.len()).filter(|&id| marks[id]).collect();
    let (first, last) = (ids[0], ids[ids.len() - 1]);
    let mut offsets = t[d2t].to_i64().unwrap();
    if last + 1 < marks.len() {
        marks.swap(last, last + 1);
        *offsets.last_mut().unwrap() += 1;
    } else {
        marks.swap(first, first - 1);
        offsets[0] -= 1;
    }
    t[d2t] = NamedTensor::from_i64("d2t", [offsets.len()], offsets);
    t[t2d] = NamedTensor::from_bool("t2d", [marks.len()], marks);
}

/// Two tensors of one shape in each other's place.
fn swap(tensors: &mut [NamedTensor], names: [&str; 2]) {
    for tensor in tensors {
        let name = match tensor.name.as_str() {
            name if name == names[0] => names[1],
            name if name == names[1] => names[0],
            _ => continue,
        };
        tensor.name = name.to_owned();
    }
}

/// Writes the folder `good` again as `folder`, with its configuration and its tensors changed, sealed as if it were right.
fn rewrite(
    good: &Path,
    folder: &Path,
    change: fn(&mut Value),
    change_tensors: fn(&mut Vec<NamedTensor>),
) {
    let model = ModelFolder::open(good).unwrap();
    let tensors = model.tensors().map(|info| model.read(&info.name).unwrap());
    let mut tensors: Vec<NamedTensor> = tensors.collect();
    let mut config = model.config().clone();
    config.as_object_mut().unwrap().remove(seal::SEAL);
    change(&mut config);
    change_tensors(&mut tensors);
    let _ = std::fs::remove_dir_all(folder);
    let sealed = seal::sealed(config, &tensors, &[], &Value::Null);
    write_folder(folder, &sealed, &tensors, &[]).unwrap();
}

/// Writes a drafter of `config` well, in every type, and then with each of the `changes`, sealed as if it were right.
fn only_what_was_trained_passes<D: Shipped>(
    config: &D::Config,
    draft_vocab: usize,
    changes: &[Changed],
) {
    let root = tempfile::tempdir().unwrap();
    let device = Device::flex();
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/targets/llama");
    let model = ModelFolder::open(target).unwrap();
    let parts = spectrain_models::load_target(&model, &device, DType::F32)
        .unwrap()
        .parts();
    let mut random = RandomWeights::new(3);
    let drafter = D::new(
        config,
        &parts,
        &vocabulary(draft_vocab),
        &mut random,
        &device,
    )
    .unwrap();
    let good = root.path().join("good");
    write_usual(&drafter, &good, DType::F32, &Value::Null).unwrap();
    let pair = Pair::open(Path::new(target), &good, &device, DType::F32).unwrap();
    let trained = open_drafter(&good, &parts, &device).unwrap();
    let prompts = pair.generated_prompts(2).unwrap();
    let mut ground = OnPrompts { pair, prompts };
    let mut verified = |folder: &Path, dtype: DType| {
        let writing = Writing {
            folder,
            dtype,
            target: "t",
            draft_length: 2,
            provenance: &Value::Null,
        };
        let read_back = open_drafter(folder, &parts, &device)?;
        let both = (trained.as_ref(), read_back.as_ref());
        verify(&mut ground, both, &writing)
    };
    let in_bf16 = Pair::open(Path::new(target), &good, &device, DType::BF16).unwrap();
    assert_eq!(
        in_bf16.drafter.tensors(),
        trained.rounded(DType::BF16).unwrap().tensors(),
        "a target of 16 bits is served with a drafter of 16 bits"
    );
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let folder = root.path().join(dtype.name());
        write_usual(&drafter, &folder, dtype, &Value::Null).unwrap();
        verified(&folder, dtype).unwrap();
    }
    verified(&root.path().join("BF16"), DType::F32).unwrap_err();
    for (name, change, change_tensors) in changes {
        let folder = root.path().join("changed");
        rewrite(&good, &folder, *change, *change_tensors);
        assert!(
            verified(&folder, DType::F32).is_err(),
            "{name} passes in silence"
        );
    }
}

#[test]
fn an_eagle_3_folder_of_another_drafter_does_not_pass_for_the_trained_one() {
    let config = Eagle3Config {
        captured_layers: vec![0, 2],
        draft_vocab: 20,
        ..Eagle3Config::default()
    };
    let changes: [Changed; 10] = [
        ("the layer below", |c| set_layers(c, [0, 1]), same),
        ("the layer above", |c| set_layers(c, [1, 2]), same),
        (
            "the other residual",
            |c| c["norm_before_residual"] = json!(true),
            same,
        ),
        ("another epsilon", |c| c["rms_norm_eps"] = json!(1e-2), same),
        ("another rope", double_rope, same),
        ("gate and up", none, |t| {
            swap(
                t,
                [
                    "midlayer.mlp.gate_proj.weight",
                    "midlayer.mlp.up_proj.weight",
                ],
            );
        }),
        ("keys and values", none, |t| {
            swap(
                t,
                [
                    "midlayer.self_attn.k_proj.weight",
                    "midlayer.self_attn.v_proj.weight",
                ],
            );
        }),
        ("two norms", none, |t| {
            swap(t, ["norm.weight", "midlayer.hidden_norm.weight"]);
            // They all start at one; what is exchanged must differ.
            let norm = t.iter_mut().find(|t| t.name == "norm.weight").unwrap();
            *norm =
                NamedTensor::from_f32("norm.weight", norm.shape.clone(), vec![1.5; norm.shape[0]]);
        }),
        ("permuted columns", none, |t| {
            let fc = t.iter_mut().find(|t| t.name == "fc.weight").unwrap();
            fc.bytes.rotate_left(4);
        }),
        ("a shifted vocabulary", none, |t| shift_vocabulary(t)),
    ];
    only_what_was_trained_passes::<Eagle3>(&config, 20, &changes);
}

#[test]
fn an_eagle_1_folder_of_another_drafter_does_not_pass_for_the_trained_one() {
    let config = Eagle1Config {
        bias: true,
        ..Eagle1Config::default()
    };
    let changes: [Changed; 4] = [
        ("another epsilon", |c| c["rms_norm_eps"] = json!(1e-2), same),
        ("another rope", double_rope, same),
        ("gate and up", none, |t| {
            swap(
                t,
                [
                    "layers.0.mlp.gate_proj.weight",
                    "layers.0.mlp.up_proj.weight",
                ],
            );
        }),
        ("feature before embedding", none, |t| {
            let fc = t.iter_mut().find(|t| t.name == "fc.weight").unwrap();
            let half = fc.shape[1] / 2 * 4;
            fc.bytes
                .chunks_mut(2 * half)
                .for_each(|row| row.rotate_left(half));
        }),
    ];
    only_what_was_trained_passes::<Eagle1>(&config, 0, &changes);
}

#[test]
fn a_tensor_that_differs_in_one_bit_is_found() {
    let fc = |value: f32| NamedTensor::from_f32("fc.weight", [2], vec![0.1, value]);
    let head = NamedTensor::from_f32("lm_head.weight", [1], vec![0.5]);
    assert!(check_tensors(&[fc(0.2)], &[fc(0.2)]).unwrap());
    assert!(!check_tensors(&[fc(0.2)], &[fc(0.2), head]).unwrap());
    let refused = |found: &[NamedTensor], part: &str| {
        let error = check_tensors(&[fc(0.2)], found).unwrap_err().to_string();
        assert!(
            error.contains("`fc.weight`") && error.contains(part),
            "{error}"
        );
    };
    refused(&[fc(f32::from_bits(0.2f32.to_bits() + 1))], "not the one");
    refused(&[], "missing");
    let other = NamedTensor::from_f32("norm.weight", [1], vec![0.5]);
    let error = check_tensors(&[fc(0.2)], &[fc(0.2), other]).unwrap_err();
    assert!(error.to_string().contains("`norm.weight` was not trained"));
}

#[test]
fn an_exported_drafter_that_accepts_less_is_refused() {
    let of = |accepted: &[usize]| Decoded {
        accepted: accepted.to_vec(),
    };
    let trained = of(&[3, 2, 5, 0]);
    compare(&trained, &trained, DType::F32).unwrap();
    compare(&trained, &of(&[3, 2, 4, 0]), DType::F32).unwrap_err();
    compare(&trained, &of(&[3, 2, 4, 0]), DType::BF16).unwrap();
    let error = compare(&trained, &of(&[0, 2, 0, 1]), DType::BF16)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("1.750") && error.contains("3.500"),
        "{error}"
    );
}

#[test]
fn of_a_few_accepted_tokens_one_less_is_no_failure() {
    let fits = |trained: usize, exported: usize| {
        let of = |total: usize| Decoded {
            accepted: vec![total],
        };
        compare(&of(trained), &of(exported), DType::BF16).is_ok()
    };
    assert!(fits(0, 0) && fits(1, 0) && fits(4, 3) && fits(10, 4));
    assert!(!fits(10, 3) && !fits(25, 14));
    // From a hundred on it is the share.
    assert!(fits(100, 80) && !fits(100, 79));
    assert!(fits(400, 320) && !fits(400, 319));
}

#[test]
fn drafts_are_the_same_but_for_the_order_of_sums() {
    let of = |probability: f32, token| Drawn {
        drafts: vec![vec![token]],
        distributions: vec![Distribution {
            probabilities: vec![probability, 1.0 - probability],
        }],
    };
    assert!(same_drafts(&of(0.25, 3), &of(0.250_001, 3)));
    assert!(!same_drafts(&of(0.25, 3), &of(0.251, 3)));
    assert!(!same_drafts(&of(0.25, 3), &of(0.25, 4)));
    let fewer = Drawn {
        distributions: Vec::new(),
        ..of(0.25, 3)
    };
    assert!(!same_drafts(&of(0.25, 3), &fewer));
}

#[test]
fn a_draw_between_two_probabilities_that_are_the_same_is_no_other_drafter() {
    let of = |token| Drawn {
        drafts: vec![vec![token]],
        distributions: Vec::new(),
    };
    let alike = |others: &[u64]| {
        let drawn = |seed| Ok([of(3), of(if others.contains(&seed) { 4 } else { 3 })]);
        draft_alike(drawn).unwrap()
    };
    assert!(alike(&[]) && alike(&SEEDS[..1]));
    assert!(!alike(&SEEDS));
}
