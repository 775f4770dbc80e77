//! What a target makes of texts on a device, beside the CPU.

use anyhow::Result;
use burn::prelude::*;
use burn::tensor::DType;
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Caches, Capture, Features, LogitRows, Pass, Target as _, Transformer, chain,
};

use crate::stages::self_check::by_layer::ByLayer;
use crate::stages::self_check::compare::{Tolerance, Wrong, apart};
use crate::stages::self_check::texts::{LONGEST, Shape, texts};

/// A target on both.
pub(super) struct Both<'a> {
    pub(super) target: &'a Transformer,
    pub(super) by_layer: &'a ByLayer<'a>,
    pub(super) capture: &'a Capture,
    pub(super) tolerance: Tolerance,
}

/// How well they agree.
#[derive(Default)]
struct Seen {
    /// Of hidden states, beside their norm.
    furthest: f64,
    /// Positions whose likeliest tokens are the same, of all.
    same: [usize; 2],
}

impl Both<'_> {
    /// What agrees, in words. The rows of a whole batch are computed on the device, the first tokens of its first and its last row
    /// on the CPU.
    pub(super) fn check(&self, shape: Shape) -> Result<String> {
        let vocab = self.by_layer.spec().vocab;
        let length = LONGEST.min(shape.length);
        let whole = texts(shape, vocab, &self.target.device());
        let found = (self.target).features(whole.tokens, &whole.layout, self.capture);
        let short = texts(Shape { length, ..shape }, vocab, &Device::flex());
        let mut seen = Seen::default();
        for row in [0, shape.rows - 1] {
            let of_row = |x: &Tensor<3>| x.clone().narrow(0, row, 1).narrow(1, 0, length);
            let found = Features {
                captured: of_row(&found.captured),
                last: of_row(&found.last),
            };
            let of_row = |x: &Tensor<2, Int>| x.clone().narrow(0, row, 1);
            let (tokens, layout) = (of_row(&short.tokens), short.layout.row(row));
            let by_layer = self.by_layer;
            let expected = by_layer.features(tokens.clone(), &layout, self.capture)?;
            self.compare(row, &found, &expected, &mut seen)?;
            self.decode(&tokens, expected.last)?;
        }
        let [same, all] = seen.same;
        let share = same as f64 / all as f64;
        if share < self.tolerance.likeliest {
            let what = format!(
                "the likeliest tokens are the same as on the CPU at only {same} of {all} positions"
            );
            return Err(Wrong(what).into());
        }
        Ok(format!(
            "hidden states at most {:.2} % of their norm apart, {:.0} % of the likeliest tokens the same",
            100.0 * seen.furthest,
            100.0 * share
        ))
    }

    /// Compares what both make of a row: the captured layers, then the last states, then the likeliest tokens.
    fn compare(
        &self,
        row: usize,
        found: &Features,
        expected: &Features,
        seen: &mut Seen,
    ) -> Result<()> {
        let d_model = self.by_layer.spec().d_model;
        let layers = self.capture.layers.iter().enumerate();
        let captured = layers.map(|(place, layer)| {
            let of = |x: &Tensor<3>| x.clone().narrow(2, place * d_model, d_model);
            let what = format!("the hidden states after layer {layer}");
            (what, of(&found.captured), of(&expected.captured))
        });
        let last = (
            "the last hidden states".to_owned(),
            found.last.clone(),
            expected.last.clone(),
        );
        for (what, found, expected) in captured.chain([last]) {
            let off = apart(&host_f32(found.cast(DType::F32)), &host_f32(expected));
            self.within(off, &format!("{what} of row {row}"))?;
            seen.furthest = off.max(seen.furthest);
        }
        let likeliest = |logits: Tensor<3>| {
            let places = logits.argmax(2).into_data();
            places.iter::<i64>().collect::<Vec<_>>()
        };
        let found = likeliest(self.target.parts().logits(found.last.clone()));
        let expected = likeliest(self.by_layer.parts().logits(expected.last.clone()));
        seen.same[0] += found.iter().zip(&expected).filter(|(a, b)| a == b).count();
        seen.same[1] += expected.len();
        Ok(())
    }

    /// Compares a decode over a cache with the whole text on the CPU, whose last states are `last`, `[1, seq, d_model]`.
    fn decode(&self, tokens: &Tensor<2, Int>, last: Tensor<3>) -> Result<()> {
        let data = tokens.to_data();
        let tokens: Vec<u32> = data.iter::<i64>().map(|id| id as u32).collect();
        let mut caches = Caches::new(self.target.spec().layers, tokens.len());
        let mut found = Vec::new();
        let (first, second) = tokens.split_at(tokens.len() / 2);
        for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
            let pass = Pass {
                tokens: part,
                parents: &chain(part.len()),
                logits: LogitRows::Last,
            };
            let output = self.target.decode(pass, &mut caches, &Capture::default());
            found = host_f32(output.logits);
        }
        let end = last.narrow(1, tokens.len() - 1, 1);
        let off = apart(&found, &host_f32(self.by_layer.parts().logits(end)));
        self.within(off, "the logits of a decode over a cache")
    }

    fn within(&self, off: f64, what: &str) -> Result<()> {
        // Written so that NaN fails.
        let agrees = off <= self.tolerance.state;
        if agrees {
            return Ok(());
        }
        let what = format!(
            "{what} differ from the CPU's by {:.2} % of their norm",
            100.0 * off
        );
        Err(Wrong(what).into())
    }
}
