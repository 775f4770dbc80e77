use rand::{RngExt, rngs::StdRng};

/// What chance decides in a walk: the generator while decoding, every branch in turn in the tests that enumerate.
pub(crate) trait Chance {
    /// Whether an event of this probability happens.
    fn happens(&mut self, probability: f64) -> bool;
    /// An index, with probability proportional to its weight. Some weight is positive.
    fn draw(&mut self, weights: &[f64]) -> usize;
}

impl Chance for StdRng {
    fn happens(&mut self, probability: f64) -> bool {
        self.random::<f64>() < probability
    }

    fn draw(&mut self, weights: &[f64]) -> usize {
        let mut left = self.random::<f64>() * weights.iter().sum::<f64>();
        let mut last = 0;
        for (index, &weight) in weights.iter().enumerate() {
            if weight > 0.0 {
                left -= weight;
                last = index;
                if left < 0.0 {
                    break;
                }
            }
        }
        last
    }
}
