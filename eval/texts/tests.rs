use rand::{SeedableRng, rngs::StdRng};
use spectrain_models::{Capture, DraftShape};

use super::own_check::OwnCheck;
use super::*;
use crate::speculate::{DecodeSettings, Decoder};
use crate::statistics::Acceptance;
use crate::toy::{Style, ToyDrafter, ToyTarget};

const LONGEST: usize = 60;

fn settings(sampling: Sampling, drafts: Vec<DraftChoice>) -> TextSettings {
    TextSettings {
        sampling,
        drafts,
        verifier: VerifierChoice::Exact,
        ends: None,
        thinking: None,
        seed: 0,
    }
}

/// Answers to some prompts, each decoded with chains of three.
fn decoded(sampling: Sampling, count: u32) -> Vec<(OwnText, Generation)> {
    decoded_from(0, sampling, count)
}

/// The same, drawn from a seed.
fn decoded_from(seed: u64, sampling: Sampling, count: u32) -> Vec<(OwnText, Generation)> {
    let (target, capture) = (ToyTarget::default(), Capture::default());
    let decoder = Decoder::new(&target, &capture);
    let decode = DecodeSettings {
        max_new_tokens: LONGEST,
        draft: DraftShape::Chain { length: 3 },
        sampling,
        stop: Vec::new(),
        shadow: None,
    };
    let answer = |number: u32| {
        let prompt = [1, number % 5, number / 5 % 5, number / 25];
        let mut drafter = ToyDrafter::new(Style::Own);
        let mut rng = StdRng::seed_from_u64(seed + u64::from(number));
        let verifier = VerifierChoice::Exact.at(&sampling);
        let found = decoder.generate(&mut drafter, verifier, &prompt, &decode, &mut rng);
        let found = found.unwrap();
        let text = OwnText::read(&target, &capture, &prompt, &found.tokens, LONGEST);
        (text.unwrap(), found)
    };
    (0..count).map(answer).collect()
}

fn judged(
    texts: &[(OwnText, Generation)],
    settings: &TextSettings,
) -> Result<(Vec<SettingReport>, TextsReport)> {
    let drafter = ToyDrafter::new(Style::Own);
    let mut judged = Texts::new("kept", &drafter, settings)?;
    for pair in texts.chunks(2) {
        let turns: Vec<OwnText> = pair.iter().map(|(text, _)| text.clone()).collect();
        let asked = turns.iter().flat_map(|text| &text.tokens[..text.first]);
        judged.add(&asked.copied().collect::<Vec<_>>(), &turns)?;
    }
    judged.finish()
}

#[test]
fn texts_give_what_decoding_them_counts() {
    let texts = decoded(Sampling::GREEDY, 30);
    let (found, own) = judged(
        &texts,
        &settings(Sampling::GREEDY, vec![DraftChoice::chain(3)]),
    )
    .unwrap();
    let passes = texts.iter().flat_map(|(_, answer)| &answer.passes);
    let mut counted = Acceptance::default();
    passes.for_each(|pass| counted.add(pass));
    let overall = &found[0].overall;
    assert_eq!(overall.tau, counted.tau());
    assert_eq!(overall.conditional, counted.conditional());
    assert_eq!(
        (overall.prompts, overall.spread.conversations),
        (30, Some(15))
    );
    assert_eq!(own.likeliest, Some(1.0));
    assert_eq!((own.conversations, own.answers), (15, 30));
    assert_eq!(own.tokens, 30 * LONGEST as u64);
    // Passes have places, and turns.
    assert!(found[0].groups.contains_key("turn"));
    assert_eq!(found[0].datasets[0].counts.len(), 15);
}

#[test]
fn drawn_texts_say_how_both_kinds_of_chains_do() {
    let sampling = Sampling::at(1.0);
    let texts = decoded(sampling, 60);
    let (found, own) = judged(&texts, &settings(sampling, vec![DraftChoice::chain(3)])).unwrap();
    let headings: Vec<String> = found.iter().map(|found| found.draft.to_string()).collect();
    assert_eq!(headings, ["chain 3 drawn", "chain 3 likeliest"]);
    let drawn = &found[0].overall;
    let decoded = texts.iter().flat_map(|(_, answer)| &answer.passes).count() as f64;
    // The same texts took so many passes, which differ by chance alone.
    assert!(
        (drawn.passes as f64 - decoded).abs() < 0.1 * decoded,
        "{drawn:?} {decoded}"
    );
    assert!(drawn.alpha_analytic.is_some() && found[1].overall.alpha_analytic.is_none());
    assert!(own.excess_surprise.unwrap().abs() < 0.05 && own.likeliest.is_none());
    assert!(own.standard_errors.unwrap().abs() < 4.0);
}

#[test]
fn texts_whose_ends_are_known_are_compared_by_what_was_asked_and_others_by_their_answers_too() {
    let sampling = Sampling::at(1.0);
    let [one, other] = [0, 1000].map(|seed| decoded_from(seed, sampling, 60));
    let found = |texts: &[(OwnText, Generation)], ends: Option<EndsReport>| {
        let settings = TextSettings {
            ends,
            ..settings(sampling, vec![DraftChoice::chain(3)])
        };
        judged(texts, &settings).unwrap().0.swap_remove(0)
    };
    let prompts = |found: &SettingReport| found.datasets[0].prompts_sha256.clone();
    let [one_alone, other_alone] = [&one, &other].map(|texts| found(texts, None));
    assert_ne!(prompts(&one_alone), prompts(&other_alone));
    assert_eq!(one_alone.ends, None);
    let ends = EndsReport {
        max_new_tokens: LONGEST,
        stop: Vec::new(),
    };
    let [one, other] = [&one, &other].map(|texts| found(texts, Some(ends.clone())));
    assert_eq!(prompts(&one), prompts(&other));
    assert_eq!(one.ends, Some(ends));
}

#[test]
fn a_prompt_without_an_answer_is_counted_as_a_decoder_counts_it() {
    let settings = settings(Sampling::GREEDY, vec![DraftChoice::chain(3)]);
    let drafter = ToyDrafter::new(Style::Own);
    let mut judged = Texts::new("kept", &drafter, &settings).unwrap();
    let (text, _) = decoded(Sampling::GREEDY, 1).swap_remove(0);
    judged.add(&[3, 2, 1], &[]).unwrap();
    judged
        .add(&text.tokens[..text.first], std::slice::from_ref(&text))
        .unwrap();
    let (found, own) = judged.finish().unwrap();
    let dataset = &found[0].datasets[0];
    assert_eq!((dataset.prompts, dataset.counts.len()), (2, 2));
    assert_eq!(dataset.counts[0], crate::counts::Counts::default());
    assert_eq!((own.conversations, own.answers), (2, 1));
}

#[test]
fn texts_of_another_hand_are_refused() {
    let drafts = || vec![DraftChoice::chain(3)];
    let [cold, warm, hot] = [Sampling::GREEDY, Sampling::at(1.0), Sampling::at(3.0)];
    let [greedy, drawn, wild] = [cold, warm, hot].map(|sampling| decoded(sampling, 60));
    for (texts, said, words) in [
        (&drawn, cold, "at temperature 0"),
        (&greedy, warm, "nats less than what it draws"),
        (&wild, warm, "nats more than what it draws"),
    ] {
        let refused = judged(texts, &settings(said, drafts())).unwrap_err();
        let message = refused.to_string();
        assert!(message.contains(words), "{message}");
        assert!(message.contains("the target wrote"), "{message}");
    }
    let narrow = Sampling { top_k: 2, ..warm };
    let refused = judged(&drawn, &settings(narrow, drafts())).unwrap_err();
    assert!(refused.to_string().contains("cannot be drawn"), "{refused}");
    judged(&decoded(narrow, 60), &settings(narrow, drafts())).unwrap();
}

/// All texts as tokens of which nobody says at which temperature they were written.
fn checked(texts: &[(OwnText, Generation)]) -> OwnCheck {
    let mut check = OwnCheck::new(1.0);
    for (text, _) in texts {
        check
            .add(&text.tokens[text.first + 1..], &text.judges)
            .unwrap();
    }
    check
}

#[test]
fn texts_are_the_targets_own_at_whatever_temperature_it_wrote_them() {
    for temperature in [0.0, 0.7, 1.0] {
        let own = checked(&decoded(Sampling::at(temperature), 60));
        assert_eq!((own.missing(), own.problem()), (0, None), "{temperature}");
        let figures = own.figures().unwrap();
        assert_eq!(figures.tokens, 60 * (LONGEST as u64 - 1));
        assert!(figures.excess_surprise < 0.05, "{figures}");
        assert_eq!(figures.likeliest == 1.0, temperature == 0.0, "{figures}");
    }
    let wild = decoded(Sampling::at(3.0), 60);
    let other = checked(&wild);
    let problem = other.problem().unwrap().to_string();
    for words in [
        "expected texts that the target wrote at temperature 1 or below",
        "nats more than what it draws",
    ] {
        assert!(problem.contains(words), "{problem}");
    }
    let told = other.figures().unwrap().to_string();
    for words in ["% of the tokens are its likeliest; at T=1 a token", "nats"] {
        assert!(told.contains(words), "{told}");
    }
    // Of few tokens nobody knows, and of none there is nothing to say.
    let few = checked(&wild[..20]);
    assert_eq!((few.missing(), few.problem()), (2000 - 20 * 59, None));
    assert_eq!(checked(&[]).figures(), None);
}

#[test]
fn what_only_decoding_can_judge_is_refused() {
    let dynamic = DraftChoice::Dynamic {
        depth: 3,
        top_k: 2,
        nodes: 4,
    };
    let texts = decoded(Sampling::GREEDY, 2);
    let refused = |drafts| judged(&texts, &settings(Sampling::GREEDY, drafts)).unwrap_err();
    let message = refused(vec![DraftChoice::chain(2), dynamic]).to_string();
    assert!(
        message.contains("without decoding, found dynamic"),
        "{message}"
    );
    assert!(refused(Vec::new()).to_string().contains("found none"));
    let none = judged(
        &[],
        &settings(Sampling::GREEDY, vec![DraftChoice::chain(2)]),
    );
    assert!(none.unwrap_err().to_string().contains("answers"));
}
