//! How a folder is to be understood where it may mean more than one thing.

/// What a folder does not say itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Layers of the target, for folders that name no captured layers and mean the default ones.
    pub target_layers: Option<usize>,
    /// Tokens of the target, for folders that do not say how many they are.
    pub target_vocab: Option<usize>,
    /// The captured layers, whatever the folder says.
    pub captured_layers: Option<Vec<usize>>,
    /// Whether `d2t` holds the target's ids, and not offsets.
    pub absolute_ids: bool,
    /// Whether the residual starts behind the norm of the features, for folders that do not say so.
    pub norm_before_residual: bool,
    /// Whether places of a block see those behind them where layers slide, for folders that do not say so.
    pub sees_ahead: bool,
}

/// One way to understand a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// The way.
    pub reading: Reading,
    /// What it takes the folder to say.
    pub text: String,
}
