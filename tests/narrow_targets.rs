//! Targets whose folders hold bf16: on the CPU their matrices stay so, and what they compute is what the same numbers in f32 do.
//! Likewise targets whose matrices are held in eight bits.
use burn::prelude::*;
use burn::tensor::DType as BurnDType;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, write_folder};
use spectrain_models::device::test_device;
use spectrain_models::few_rows::Decoding;
use spectrain_models::weights::{export, host_f32};
use spectrain_models::{
    Caches, Capture, FrozenType, Layout, LogitRows, Pass, Target as _, Transformer, chain,
    load_first_layers, load_target,
};

use crate::golden::{folders, path};

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
    let device = target.device();
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
    for name in folders("targets") {
        let [narrow, wide] = both(&name);
        assert_eq!(features(&narrow), features(&wide), "{name}");
        assert_eq!(logits(&narrow), logits(&wide), "{name}");
        assert_eq!(narrow.dtype(), BurnDType::F32, "{name}");
        let (found, expected) = (export(&narrow), export(&wide));
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.bytes, expected.bytes, "{name} {}", found.name);
        }
    }
}

/// Every 32 elements of a row with a scale, as the largest of them is 127: what they are then.
fn rounded(values: &mut [f32]) {
    for block in values.chunks_mut(32) {
        let largest = block
            .iter()
            .fold(0.0_f32, |most, value| most.max(value.abs()));
        for value in block {
            let whole = (*value * (127.0 / largest)).round();
            assert!((whole * (largest / 127.0) - *value).abs() <= 1.001 * largest / 254.0);
            *value = whole * (largest / 127.0);
        }
    }
}

/// A target held in eight bits, and one of the numbers that it is held in, in f32; how many matrices were rounded.
fn both_in_eight_bits(name: &str) -> ([Transformer; 2], usize) {
    let whole = ModelFolder::open(path(&format!("targets/{name}"))).unwrap();
    let mut count = 0;
    let mut of = |name: &str| {
        let mut tensor = whole.read(name).unwrap();
        let is_matrix = name.contains("_proj.weight") && !name.contains(".experts.");
        if is_matrix && tensor.shape[1].is_multiple_of(32) {
            let mut values = tensor.to_f32().unwrap();
            rounded(&mut values);
            tensor = NamedTensor::from_f32(name, tensor.shape, values);
            count += 1;
        }
        tensor
    };
    let names: Vec<String> = whole.tensors().map(|info| info.name.clone()).collect();
    let tensors: Vec<NamedTensor> = names.iter().map(|name| of(name)).collect();
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(name);
    write_folder(&folder, whole.config(), &tensors, &[]).unwrap();
    let int8 = FrozenType {
        int8: true,
        ..DType::F32.into()
    };
    let device = Device::flex();
    let held = load_target(&whole, &device, int8).unwrap();
    let same = load_first_layers(&folder, usize::MAX, &device, DType::F32).unwrap();
    ([held, same], count)
}

#[test]
fn in_eight_bits_they_compute_what_the_rounded_numbers_do_in_f32() {
    let mut all = 0;
    for name in folders("targets") {
        let ([held, same], count) = both_in_eight_bits(&name);
        all += count;
        assert_eq!(features(&held), features(&same), "{name}");
        assert_eq!(logits(&held), logits(&same), "{name}");
        assert_eq!(held.dtype(), BurnDType::F32, "{name}");
        assert_eq!(
            held.parameters_per_pass(),
            same.parameters_per_pass(),
            "{name}"
        );
    }
    assert!(all > 20, "matrices with rows of 32, {all}");
}
