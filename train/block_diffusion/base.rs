//! Domino's curriculum (<https://arxiv.org/abs/2605.29707>): a training begins with the loss of slots without what the tokens
//! before them add, and goes over to that of whole slots.
use super::config::BlockLossConfig;
use crate::batch::Step;
use crate::objective::Loss;
use crate::token_loss::times;

/// The share of the loss without what the tokens before add: `base_weight` in the first step, and less in each further one
/// until it is 0 after `base_until` of the steps. 0 outside of a training.
pub(super) fn share(config: &BlockLossConfig, step: Option<Step>) -> f64 {
    let Some(Step { number, of }) = step else {
        return 0.0;
    };
    let falls = ((of as f64 * config.base_until) as usize).max(1);
    config.base_weight * (1.0 - (number as f64 / falls as f64).min(1.0))
}

/// Makes the rest of all a loss, beside this `share` of another over the same rows, which has been weighed.
pub(super) fn blend(loss: &mut Loss, base: Loss, share: f64) {
    let rest = 1.0 - share;
    loss.surrogate = loss.surrogate.clone() * rest;
    for (_, gradient) in &mut loss.head_gradients {
        *gradient = gradient.clone() * rest;
    }
    for (_, term) in &mut loss.terms {
        *term = term.clone() * rest;
    }
    loss.rows = times(&loss.rows, rest as f32);
    loss.add_term("base", base);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_falls_to_nothing_in_the_given_part_of_the_training() {
        let config = BlockLossConfig {
            base_weight: 0.8,
            base_until: 0.5,
            ..Default::default()
        };
        let at = |number| share(&config, Some(Step { number, of: 21 }));
        assert_eq!([at(0), at(5), at(10), at(20)], [0.8, 0.4, 0.0, 0.0]);
        assert_eq!(share(&config, None), 0.0);
        let at_once = BlockLossConfig {
            base_until: 0.0,
            ..config
        };
        assert_eq!(share(&at_once, Some(Step { number: 1, of: 21 })), 0.0);
    }
}
