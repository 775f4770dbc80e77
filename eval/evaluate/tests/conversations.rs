//! Conversations of several turns: what is asked, what is compared, and what the intervals are over.
use std::sync::Arc;

use rand::{SeedableRng as _, rngs::StdRng};
use spectrain_data::answered::said;
use spectrain_models::Capture;

use super::super::*;
use super::toy;
use crate::evaluate::settings::CalibrationPrompts;
use crate::prompts::Later;
use crate::speculate::{Generation, PassRecord};
use crate::toy::{Style, ToyTarget};
use crate::verify::VerifierChoice;

/// Turns of tokens: the conversation so far, a token between turns, and the turn.
#[derive(Debug)]
struct TokenTurns {
    opening: Vec<u32>,
    turns: Vec<Vec<u32>>,
}

/// Stands behind each answer.
const BREAK: u32 = 4;

impl Later for TokenTurns {
    fn count(&self) -> usize {
        self.turns.len()
    }

    fn identity(&self) -> String {
        format!("{:?}", self.turns)
    }

    fn ask(
        &self,
        answers: &[Vec<u32>],
    ) -> std::result::Result<Vec<u32>, Box<dyn std::error::Error + Send + Sync>> {
        let mut tokens = self.opening.clone();
        for (answer, turn) in answers.iter().zip(&self.turns) {
            if turn.is_empty() {
                return Err("it says nothing".into());
            }
            tokens.extend(answer.iter().chain(&[BREAK]).chain(turn));
        }
        Ok(tokens)
    }
}

pub(super) fn conversation(turns: &[&[u32]]) -> Prompt {
    let opening = turns[0].to_vec();
    let turns = turns[1..].iter().map(|turn| turn.to_vec()).collect();
    Prompt {
        later: Some(Arc::new(TokenTurns {
            opening: opening.clone(),
            turns,
        })),
        ..opening.into()
    }
}

pub(super) fn set(prompts: Vec<Prompt>) -> Vec<PromptSet> {
    let name = "talk".to_owned();
    vec![PromptSet { name, prompts }]
}

fn settings(temperature: f64) -> EvaluateSettings {
    EvaluateSettings {
        samplings: vec![Sampling::at(temperature)],
        drafts: vec![DraftChoice::chain(2), DraftChoice::chain(4)],
        calibration: CalibrationPrompts::default(),
        batch_size: 1,
        max_new_tokens: 9,
        stop: vec![3],
        classes: None,
        thinking: None,
        verifier: VerifierChoice::Exact,
        baseline: true,
        seed: 5,
    }
}

fn evaluated_by(
    target: &ToyTarget,
    sets: &[PromptSet],
    settings: &EvaluateSettings,
) -> Result<Evaluation> {
    let capture = Capture::default();
    let decoder = Decoder::new(target, &capture);
    let sessions = || toy(Style::Own);
    let mut last = (0, 0);
    let found = evaluate(&decoder, &sessions, sets, settings, &mut |progress| {
        last = (progress.done, progress.total);
    })?;
    assert_eq!(last.0, last.1, "what was announced is done");
    Ok(found)
}

fn evaluated(sets: &[PromptSet], settings: &EvaluateSettings) -> Evaluation {
    evaluated_by(&ToyTarget::default(), sets, settings).unwrap()
}

#[test]
fn each_turn_continues_the_conversation_with_the_targets_own_answers() {
    let turns: [&[u32]; 3] = [&[1, 2], &[0], &[2, 2]];
    let found = evaluated(
        &set(vec![conversation(&turns), vec![1].into()]),
        &settings(0.0),
    );
    let target = ToyTarget::default();
    let capture = Capture::default();
    let decoder = Decoder::new(&target, &capture);
    let plain = settings(0.0);
    let chain = DraftShape::Chain { length: 0 };
    let decode = plain.decode(&Sampling::GREEDY, &chain, Warm::Already);
    let mut text = Vec::new();
    let mut by_hand = Vec::new();
    for turn in turns {
        text.extend(turn);
        let mut rng = StdRng::seed_from_u64(0);
        let answer = decoder.plain(&text, &decode, &mut rng).unwrap().tokens;
        by_hand.push((text.clone(), answer.clone()));
        // The token that ended the answer is not part of what it said.
        text.extend(answer.iter().filter(|token| **token != 3));
        text.push(BREAK);
    }
    assert!(
        by_hand.iter().any(|(_, answer)| answer.contains(&3)),
        "{by_hand:?}"
    );
    for outputs in &found.outputs {
        let answers = outputs[0].iter().filter(|answer| answer.conversation == 0);
        let decoded: Vec<_> = answers
            .map(|answer| (answer.prompt.clone(), answer.generation.tokens.clone()))
            .collect();
        assert_eq!(decoded, by_hand);
        let turns: Vec<_> = outputs[0]
            .iter()
            .map(|answer| (answer.conversation, answer.turn))
            .collect();
        assert_eq!(turns, [(0, 0), (0, 1), (0, 2), (1, 0)]);
    }
    assert_eq!(found.greedy.outputs, 2 * 4);
    assert!(found.greedy.differences.is_empty());
    let overall = &found.settings[0].overall;
    assert_eq!(
        (overall.prompts, overall.spread.conversations),
        (4, Some(2))
    );
}

#[test]
fn without_a_baseline_all_drafts_are_asked_the_same_at_temperature_0() {
    let sets = set(vec![conversation(&[&[1, 2], &[0], &[2, 2]])]);
    let with = evaluated(&sets, &settings(0.0));
    let without = EvaluateSettings {
        baseline: false,
        ..settings(0.0)
    };
    let without = evaluated(&sets, &without);
    let asked = |found: &Evaluation| -> Vec<Vec<u32>> {
        let all = found.outputs.iter().flatten().flatten();
        all.map(|answer| answer.prompt.clone()).collect()
    };
    assert_eq!(asked(&with), asked(&without));
}

#[test]
fn above_temperature_0_each_setting_has_its_own_conversation() {
    let sets = set(vec![conversation(&[&[1, 2], &[0], &[2, 2]]); 6]);
    let found = evaluated(&sets, &settings(1.0));
    let asked = |outputs: &[Vec<Answer>]| -> Vec<Vec<u32>> {
        outputs[0]
            .iter()
            .map(|answer| answer.prompt.clone())
            .collect()
    };
    let (first, second) = (asked(&found.outputs[0]), asked(&found.outputs[1]));
    assert_ne!(first, second);
    for outputs in &found.outputs {
        for turns in conversations(&outputs[0]) {
            assert_eq!(turns.len(), 3);
            let said = said(&turns[0].generation.tokens, &settings(1.0).stop);
            let next = [&[1, 2][..], said, &[BREAK, 0]].concat();
            assert_eq!(turns[1].prompt, next);
        }
    }
    for setting in &found.settings {
        assert!(setting.sampling.unwrap().each.p_value > 0.001);
    }
}

#[test]
fn what_the_context_has_no_room_for_is_not_asked_and_counted() {
    let target = ToyTarget::with_positions(14);
    let sets = set(vec![
        conversation(&[&[1, 2], &[0], &[2, 2], &[1]]),
        vec![1].into(),
    ]);
    let settings = EvaluateSettings {
        stop: Vec::new(),
        ..settings(0.0)
    };
    let found = evaluated_by(&target, &sets, &settings).unwrap();
    // Of 14 places 2 + 9 + 1 + 1 are taken before the second answer, and the third turn finds none.
    let overall = &found.settings[0].overall;
    assert_eq!(overall.prompts, 3);
    assert_eq!(overall.spread.turns_left_out, Some(2));
}

#[test]
fn a_turn_that_cannot_be_asked_says_which() {
    let sets = set(vec![vec![1].into(), conversation(&[&[1], &[0], &[]])]);
    let error = evaluated_by(&ToyTarget::default(), &sets, &settings(0.0)).unwrap_err();
    let expected = "dataset `talk`, prompt 1: turn 3: it says nothing";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn intervals_are_over_conversations_and_not_over_turns() {
    // Two conversations whose 50 turns are alike in one and in the other.
    let pass = |accepted: usize| PassRecord {
        drafted: 3,
        depth: 3,
        tested: 3,
        accepted,
        emitted: accepted + 1,
        ..Default::default()
    };
    let answers = |conversation: usize, accepted: usize| -> Vec<Answer> {
        let turn = |turn| Answer {
            conversation,
            turn,
            prompt: vec![1],
            generation: Generation {
                tokens: vec![0; 1 + 4 * (accepted + 1)],
                passes: vec![pass(accepted); 4],
                ..Generation::default()
            },
        };
        (0..50).map(turn).collect()
    };
    let turns: Vec<&[u32]> = vec![&[1]; 50];
    let sets = set(vec![conversation(&turns); 2]);
    let outputs = [[answers(0, 0), answers(1, 2)].concat()];
    let measured = measure(&sets, (&outputs, None), 1);
    let overall = overall(&measured, 0.1, 7);
    assert_eq!(overall.tau, Some(2.0));
    assert_eq!(overall.tau_ci95, Some([1.0, 3.0]));
    assert_eq!(overall.spread.tau_mean_ci95, Some([1.0, 3.0]));
    assert_eq!(overall.prompts, 100);
    let found = groups(&sets, &outputs, None, 7);
    for group in found.values().flatten() {
        assert_eq!(group.tau_ci95, Some([1.0, 3.0]), "{group:?}");
    }
    // The same as prompts of their own say something.
    let sets = set(vec![vec![1].into(); 100]);
    let alone = outputs[0]
        .iter()
        .enumerate()
        .map(|(conversation, answer)| Answer {
            conversation,
            turn: 0,
            ..answer.clone()
        });
    let measured = measure(&sets, (&[alone.collect()], None), 1);
    let [low, high] = super::super::overall(&measured, 0.1, 7).tau_ci95.unwrap();
    assert!(1.7 < low && high < 2.3, "{low} {high}");
}

#[test]
fn conversations_are_the_same_side_by_side() {
    let turns = |first: u32| conversation(&[&[first, 2], &[0], &[2, 2]]);
    let sets = set(vec![turns(1), vec![1].into(), turns(3), turns(0)]);
    for temperature in [0.0, 1.0] {
        let alone = evaluated(&sets, &settings(temperature));
        let settings = EvaluateSettings {
            batch_size: 3,
            ..settings(temperature)
        };
        let found = evaluated(&sets, &settings);
        for (found, alone) in found
            .outputs
            .iter()
            .flatten()
            .zip(alone.outputs.iter().flatten())
        {
            let told = |answers: &[Answer]| -> Vec<_> {
                let told = |of: &Answer| {
                    let tokens = of.generation.tokens.clone();
                    (of.conversation, of.turn, of.prompt.clone(), tokens)
                };
                answers.iter().map(told).collect()
            };
            assert_eq!(told(found), told(alone));
        }
    }
}
