/// One position to be judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedRow {
    /// Which of the hidden states: the draft step, or the head.
    pub step: usize,
    /// Row of that step's hidden states.
    pub position: usize,
    /// Row of the target's last hidden states, or of the labels, that judges it.
    pub teacher: usize,
    /// Factor on its loss.
    pub weight: f32,
}
