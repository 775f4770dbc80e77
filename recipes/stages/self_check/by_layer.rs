//! A target on the CPU in f32, of which one layer at a time is in memory.

use anyhow::Result;
use burn::prelude::*;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor};
use spectrain_models::mask::Layout;
use spectrain_models::weights::{Init, Scope, Weights};
use spectrain_models::{
    Capture, Features, TargetParts, TargetSpec, Transformer, TransformerConfig, load_parts,
};

/// The target of a folder.
pub(super) struct ByLayer<'a> {
    folder: &'a ModelFolder,
    config: TransformerConfig,
    /// Its embedding, its norm and its head.
    parts: TargetParts,
}

impl<'a> ByLayer<'a> {
    pub(super) fn open(folder: &'a ModelFolder) -> Result<Self> {
        let file = folder.path().join("config.json");
        Ok(Self {
            config: TransformerConfig::read(folder.config(), &file)?,
            parts: load_parts(folder.path(), &Device::flex(), DType::F32)?,
            folder,
        })
    }

    pub(super) fn spec(&self) -> &TargetSpec {
        &self.config.spec
    }

    pub(super) fn parts(&self) -> &TargetParts {
        &self.parts
    }

    /// What [`Transformer::features`] gives.
    ///
    /// # Shapes
    /// - tokens: `[batch, seq]`
    pub(super) fn features(
        &self,
        tokens: Tensor<2, Int>,
        layout: &Layout,
        capture: &Capture,
    ) -> Result<Features> {
        let mask = |window| Some(layout.mask(window));
        let mut x = self.parts.embed_tokens.forward(tokens);
        let mut captured = Vec::new();
        for index in 0..self.config.spec.layers {
            let only = Capture { layers: vec![0] };
            let layer = self.layer(index)?;
            x = layer
                .states(x, layout.positions.clone(), &mask, None, &only)
                .captured;
            if capture.layers.contains(&index) {
                captured.push(x.clone());
            }
        }
        let last = self.parts.norm.forward(x.clone());
        let captured = match captured.is_empty() {
            true => x.narrow(2, 0, 0),
            false => Tensor::cat(captured, 2),
        };
        Ok(Features { captured, last })
    }

    /// A model of this layer alone.
    fn layer(&self, index: usize) -> Result<Transformer> {
        let mut config = self.config.clone();
        config.windows = vec![config.windows[index]];
        config.spec.layers = 1;
        if let Some(routing) = &mut config.spec.routing {
            routing.layers = vec![routing.layers[index]];
        }
        let mut weights = OfLayer {
            folder: self.folder,
            index,
        };
        let device = Device::flex();
        let mut scope = Scope::root(&mut weights, &device, DType::F32);
        Ok(Transformer::new(&mut scope, config)?)
    }
}

/// The weights of one layer, as those of the first; what is in no layer has no values.
struct OfLayer<'a> {
    folder: &'a ModelFolder,
    index: usize,
}

impl Weights for OfLayer<'_> {
    fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        _: Init,
    ) -> spectrain_models::Result<NamedTensor> {
        let (dtype, bytes) = match name.strip_prefix("layers.0.") {
            None => (DType::F32, Vec::new()),
            Some(rest) => {
                let name = format!("model.layers.{}.{rest}", self.index);
                self.folder.read_bytes(&name, shape)?
            }
        };
        Ok(NamedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype,
            bytes,
        })
    }
}
