//! Targets whose folders hold bf16: on the CPU their matrices stay so, and what they compute is what the same numbers in f32 do.
use burn::prelude::*;
use burn::tensor::DType as BurnDType;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, write_folder};
use spectrain_models::device::test_device;
use spectrain_models::few_rows::Decoding;
use spectrain_models::weights::{export, host_f32};
use spectrain_models::{
    Caches, Capture, Layout, LogitRows, Pass, Target as _, Transformer, chain, load_first_layers,
    load_target,
};

use crate::golden::path;

const TARGETS: [&str; 8] = [
    "llama",
    "llama_linear",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_moe_step",
    "qwen3_yarn",
];

/// A target read from a folder in bf16, and the same numbers in f32.
fn both(name: &str) -> [Transformer; 2] {
    let wide = ModelFolder::open(path(&format!("targets/{name}"))).unwrap();
    let narrow = |tensor: NamedTensor| tensor.cast(DType::BF16).unwrap();
    let tensors: Vec<_> = wide
        .tensors()
        .map(|info| narrow(wide.read(&info.name).unwrap()))
        .collect();
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(name);
    write_folder(&folder, wide.config(), &tensors, &[]).unwrap();
    let device = test_device();
    let opened = ModelFolder::open(&folder).unwrap();
    [
        load_target(&opened, &device, DType::F32).unwrap(),
        load_first_layers(&folder, usize::MAX, &device, DType::F32).unwrap(),
    ]
}

/// Hidden states of a row of 300 tokens.
fn features(target: &Transformer) -> Vec<f32> {
    let device = test_device();
    let vocab = target.spec().vocab as i64;
    let ids = Tensor::<1, Int>::arange(0..300, &device).mul_scalar(7);
    let ids = ids.remainder_scalar(vocab).unsqueeze::<2>();
    let layout = Layout::whole([1, 300], &device);
    let capture = Capture { layers: vec![0, 1] };
    let found = target.features(ids, &layout, &capture);
    [host_f32(found.captured), host_f32(found.last)].concat()
}

/// Logits of passes of a decoder.
fn logits(target: &Transformer) -> Vec<f32> {
    let _decoding = Decoding::begin();
    let (layers, vocab) = (target.spec().layers, target.spec().vocab);
    let mut caches = Caches::new(layers, 100);
    let mut found = Vec::new();
    for count in [70, 1, 6, 2] {
        let tokens: Vec<u32> = (0..count).map(|token| (token % vocab) as u32).collect();
        let pass = Pass {
            tokens: &tokens,
            parents: &chain(count),
            logits: LogitRows::All,
        };
        found.extend(host_f32(
            target.decode(pass, &mut caches, &Capture::default()).logits,
        ));
    }
    found
}

#[test]
fn what_they_compute_is_what_the_same_numbers_in_f32_do() {
    for name in TARGETS {
        let [narrow, wide] = both(name);
        assert_eq!(features(&narrow), features(&wide), "{name}");
        assert_eq!(logits(&narrow), logits(&wide), "{name}");
        assert_eq!(narrow.dtype(), BurnDType::F32, "{name}");
        let (found, expected) = (export(&narrow), export(&wide));
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.bytes, expected.bytes, "{name} {}", found.name);
        }
    }
}
