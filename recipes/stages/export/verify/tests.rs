use super::*;
use std::path::Path;

use burn::prelude::Device;
use serde_json::Value;
use spectrain_checkpoints::ModelFolder;
use spectrain_checkpoints::eagle1::{self, Eagle1Layout};
use spectrain_checkpoints::eagle3::{self, Eagle3Layout};
use spectrain_models::RandomWeights;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};

use crate::families::drafter_folder::samples::vocabulary;
use crate::families::registry::open_drafter;
use crate::families::shipped::Shipped;

type Read<L> = fn(&Path) -> spectrain_checkpoints::Result<(L, Vec<NamedTensor>)>;
type Changed<L> = (&'static str, fn(&mut L), fn(&mut Vec<NamedTensor>));

fn same(_: &mut Vec<NamedTensor>) {}

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

/// Writes a drafter of `config` well, in every type, and then with each of the `changes`, sealed as if it were right.
fn only_what_was_trained_passes<D: Shipped, L: Clone>(
    config: &D::Config,
    draft_vocab: usize,
    read: Read<L>,
    write: fn(&Path, &L, Vec<NamedTensor>, &Value) -> spectrain_checkpoints::Result<()>,
    changes: &[Changed<L>],
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
    drafter.write(&good, DType::F32, &Value::Null).unwrap();
    let mut judge = Judge::open(Path::new(target), &good, &device, DType::F32).unwrap();
    let trained = open_drafter(&good, &parts, &device).unwrap();
    let prompts = judge.generated_prompts(2).unwrap();
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
        verify(&mut judge, both, &writing, &prompts)
    };
    let in_bf16 = Judge::open(Path::new(target), &good, &device, DType::BF16).unwrap();
    assert_eq!(
        in_bf16.drafter.tensors(),
        trained.rounded(DType::BF16).unwrap().tensors(),
        "a target of 16 bits is served with a drafter of 16 bits"
    );
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let folder = root.path().join(dtype.name());
        drafter.write(&folder, dtype, &Value::Null).unwrap();
        verified(&folder, dtype).unwrap();
    }
    verified(&root.path().join("BF16"), DType::F32).unwrap_err();
    for (name, change, change_tensors) in changes {
        let (mut layout, mut tensors) = read(&good).unwrap();
        change(&mut layout);
        change_tensors(&mut tensors);
        let folder = root.path().join("changed");
        write(&folder, &layout, tensors, &Value::Null).unwrap();
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
    let none = |_: &mut Eagle3Layout| ();
    let changes: [Changed<Eagle3Layout>; 10] = [
        ("the layer below", |l| l.captured_layers = vec![0, 1], same),
        ("the layer above", |l| l.captured_layers = vec![1, 2], same),
        (
            "the other residual",
            |l| l.norm_before_residual = true,
            same,
        ),
        ("another epsilon", |l| l.rms_norm_eps = 1e-2, same),
        ("another rope", |l| l.rope.rope_theta *= 2.0, same),
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
        ("a shifted vocabulary", none, |t| {
            let d2t = t.iter().find(|t| t.name == "d2t").unwrap();
            let vocab = t.iter().find(|t| t.name == "t2d").unwrap().shape[0];
            let ids = eagle3::target_ids(d2t).unwrap();
            let first = if ids[0] == 0 { ids.len() } else { 0 };
            let ids: Vec<usize> = match first {
                0 => ids.iter().map(|id| id - 1).collect(),
                _ => (0..ids.len()).collect(),
            };
            let (d2t, t2d) = eagle3::vocabulary_tensors(&ids, vocab);
            t.retain(|t| !["d2t", "t2d"].contains(&t.name.as_str()));
            t.extend([d2t, t2d]);
        }),
    ];
    only_what_was_trained_passes::<Eagle3, _>(&config, 20, eagle3::read, eagle3::write, &changes);
}

#[test]
fn an_eagle_1_folder_of_another_drafter_does_not_pass_for_the_trained_one() {
    let config = Eagle1Config {
        bias: true,
        ..Eagle1Config::default()
    };
    let none = |_: &mut Eagle1Layout| ();
    let changes: [Changed<Eagle1Layout>; 4] = [
        ("another epsilon", |l| l.rms_norm_eps = 1e-2, same),
        ("another rope", |l| l.rope.rope_theta *= 2.0, same),
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
    only_what_was_trained_passes::<Eagle1, _>(&config, 0, eagle1::read, eagle1::write, &changes);
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
    let error = compare(&trained, &of(&[1, 2, 0, 1]), DType::BF16)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("2.000") && error.contains("3.500"),
        "{error}"
    );
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
