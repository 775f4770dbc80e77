//! The one vocabulary loss: its gradients are those of plain autodiff, and it never holds the logits of all positions.
use burn::module::{Param, ParamId};
use burn::prelude::*;
use burn::tensor::activation::log_softmax;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::weights::host_f32;
use spectrain_models::{Init, Linear, RandomWeights, TargetParts, Weights};
use spectrain_train::{
    Divergence, HeadParameter, Judge, JudgedRow, LossHead, Statistics, Teacher, vocab_loss,
};

use crate::allocation::{alone, largest_during};
use crate::golden::assert_close;
use crate::tiny;

fn random(seed: u64, shape: [usize; 2], device: &Device) -> Tensor<2> {
    let values = RandomWeights::new(seed)
        .tensor("x", &shape, Init::Normal(1.0))
        .unwrap();
    spectrain_models::weights::tensor_from(values, device)
}

fn rows(steps: usize, positions: usize) -> Vec<JudgedRow> {
    let row = |step, position| JudgedRow {
        step,
        position,
        teacher: position + step,
        weight: 1.0 / (1 + step + position % 3) as f32,
    };
    (0..steps)
        .flat_map(|step| {
            (0..positions - steps)
                .filter(|p| p % 4 != 1)
                .map(move |p| row(step, p))
        })
        .collect()
}

#[test]
fn gradients_equal_plain_autodiff() {
    equals_plain_autodiff(Divergence::Kl, 1.0);
}

#[test]
fn gradients_of_a_blend_equal_plain_autodiff() {
    // The logarithm of a large ratio multiplies the rounding of both products, so ratios are those of a head as models have it.
    equals_plain_autodiff(Divergence::ReverseKl, 0.2);
}

/// The parts of a target with a random head, of numbers of about this size.
fn parts(d: usize, vocab: usize, scale: f64, device: &Device) -> TargetParts {
    let mut parts = tiny::target(device).parts();
    parts.lm_head = Linear {
        weight: Param::from_tensor(random(1, [d, vocab], device) * scale),
        bias: None,
        lora: None,
    };
    parts
}

/// Random numbers that gradients are taken of.
fn lifted(seed: u64, shape: [usize; 2], device: &Device) -> Tensor<2> {
    Tensor::from_inner(random(seed, shape, device)).require_grad()
}

/// A row's divergence as its formula says.
fn distance(divergence: &Divergence, log_p: Tensor<2>, log_q: Tensor<2>) -> Tensor<1> {
    let distance = match divergence {
        Divergence::Kl => log_p.clone().exp() * (log_p - log_q),
        Divergence::ReverseKl => log_q.clone().exp() * (log_q - log_p),
        other => unreachable!("{other:?} has no formula here"),
    };
    distance.sum()
}

fn equals_plain_autodiff(divergence: Divergence, scale: f64) {
    let device = test_device();
    let (positions, d) = (40, 32);
    let parts = parts(d, tiny::VOCAB, scale, &device);
    let vocabulary = DraftVocabulary::full(tiny::VOCAB);
    let last = random(2, [positions, d], &device);
    let hidden = [3, 4, 5].map(|seed| lifted(seed, [positions, d], &device));
    let head = random(9, [d, tiny::VOCAB], &device) * scale;
    let head = Tensor::from_inner(head).require_grad();
    let bias = random(10, [1, tiny::VOCAB], &device).squeeze_dim::<1>(0);
    let bias = Tensor::<1>::from_inner(bias).require_grad();
    let id = ParamId::new();
    let rows = rows(hidden.len(), positions);

    let teacher = Teacher::new(last.clone().reshape([1, positions, d]), &parts, &vocabulary);
    let judge = Judge::Target {
        teacher: &teacher,
        divergence: &divergence,
    };
    let applied = LossHead {
        weight: head.clone(),
        bias: Some(bias.clone()),
        trained: Some(HeadParameter::Weight(id)),
    };
    let mut loss = vocab_loss(&hidden, applied, rows.clone(), judge, Statistics::Loss);

    let log_p = log_softmax(last.matmul(parts.lm_head.weight.val()), 1);
    let log_p = Tensor::<2>::from_inner(log_p);
    let mut plain = Tensor::<1>::zeros([1], &device.autodiff());
    for row in &rows {
        let of = hidden[row.step].clone().narrow(0, row.position, 1);
        let log_q = log_softmax(of.matmul(head.clone()) + bias.clone().unsqueeze(), 1);
        let log_p = log_p.clone().narrow(0, row.teacher, 1);
        plain = plain + distance(&divergence, log_p, log_q) * row.weight;
    }
    let (value, expected) = (loss.value(), host_f32(plain.clone().inner())[0]);
    assert!((value - expected as f64).abs() < 1e-3, "{value}");

    let (chunked, plain) = (loss.surrogate.backward(), plain.backward());
    let close = |what: &str, got: Vec<f32>, expected: Vec<f32>| {
        assert_close(what, &got, &expected, 1e-5);
    };
    for (step, hidden) in hidden.iter().enumerate() {
        let [got, expected] = [&chunked, &plain].map(|of| host_f32(hidden.grad(of).unwrap()));
        close(&format!("hidden {step}"), got, expected);
    }
    let (known, got) = loss.head_gradient.take().unwrap();
    assert_eq!(known, id);
    close("head", host_f32(got), host_f32(head.grad(&plain).unwrap()));
    let [got, expected] = [&chunked, &plain].map(|of| host_f32(bias.grad(of).unwrap()));
    close("bias", got, expected);
}

#[test]
fn no_tensor_over_all_positions_and_the_vocabulary_is_allocated() {
    alone(|| {
        let device = test_device();
        let (positions, d, vocab) = (2304, 16, 65_536);
        let parts = parts(d, vocab, 1.0, &device);
        let last = random(2, [positions, d], &device).reshape([1, positions, d]);
        let hidden = [3, 4, 5].map(|seed| lifted(seed, [positions, d], &device));
        let head = lifted(9, [d, vocab], &device);
        let all = positions * vocab * 4;
        let largest = largest_during(|| {
            let vocabulary = DraftVocabulary::full(vocab);
            let teacher = Teacher::new(last, &parts, &vocabulary);
            let judge = Judge::Target {
                teacher: &teacher,
                divergence: &Divergence::Kl,
            };
            let loss = vocab_loss(
                &hidden,
                LossHead {
                    weight: head,
                    bias: None,
                    trained: Some(HeadParameter::Weight(ParamId::new())),
                },
                rows(hidden.len(), positions),
                judge,
                Statistics::All,
            );
            loss.surrogate.backward();
        });
        assert!(
            largest * 4 <= all,
            "one allocation of {largest} bytes, of {all} for all logits"
        );
    });
}
