//! What an objective makes of a batch, in numbers, for an estimate of what it takes.

/// The work of one training step of one batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// Passes that the drafter is unrolled for.
    pub passes: usize,
    /// Of these, how many have their activations in memory at a time; the others are computed again.
    pub held: usize,
    /// What goes through the drafter's layers.
    pub rows: WorkRows,
    /// Share of them that is judged, on average.
    pub judged: f64,
    /// What judges a row.
    pub judges: Judges,
    /// How often rows are judged again behind tokens of the drafter's own, if it refines its drafts.
    pub again: usize,
    /// How often they are judged by what the drafter guesses at once besides, if it refines its drafts.
    pub guessed: usize,
}

/// What goes through the layers of a drafter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WorkRows {
    /// The packed texts.
    Texts,
    /// So many rows for each position of the texts, these counted.
    Extended(f64),
    /// At most so many blocks for each packed row, beside a context that only gives keys and values.
    Blocks(usize),
    /// The texts with so many blocks behind cuts of them, each of at most so many places.
    Behind {
        /// Blocks of a text.
        cuts: usize,
        /// Places of a block, what separates it counted.
        places: usize,
    },
}

/// What judges a row, which decides what is in memory beside its logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judges {
    /// The text.
    Text,
    /// The target's distributions.
    Target {
        /// How many distributions of a position are in memory on the CPU.
        panels: u64,
    },
}

impl Workload {
    /// One pass over the texts.
    pub fn texts(judges: Judges) -> Self {
        Self {
            passes: 1,
            held: 1,
            rows: WorkRows::Texts,
            judged: 1.0,
            judges,
            again: 0,
            guessed: 0,
        }
    }
}
