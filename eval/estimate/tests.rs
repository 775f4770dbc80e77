use std::cell::Cell;

use burn::prelude::Device;
use burn::tensor::DType;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_models::{
    Caches, Capture, LogitRows, Pass, StopBy, Target, TargetOutput, TargetParts, TargetSpec,
    acceptance_bound, argmax,
};

use super::*;
use crate::error::Error;
use crate::reliability::Reliability;
use crate::speculate::PassRecord;
use crate::speculate::{DecodeSettings, Decoder, Generation};
use crate::statistics::Acceptance;
use crate::toy::{OWN, Style, TARGET, ToyDrafter, ToyTarget, VOCAB, guess, logits};
use crate::verify::VerifierChoice;
use crate::verify::rows::host_rows;

const PROMPT: [u32; 3] = [1, 4, 2];

/// A way of decoding.
struct Case {
    shape: DraftShape,
    sampling: Sampling,
    stop: Vec<u32>,
    longest: usize,
}

impl Case {
    fn decode(&self, target: &ToyTarget, seed: u64) -> (Generation, Estimate) {
        self.decode_with(Style::Own, target, seed)
    }

    fn decode_with(&self, style: Style, target: &ToyTarget, seed: u64) -> (Generation, Estimate) {
        let capture = Capture::default();
        let decoder = Decoder::new(target, &capture);
        let mut drafter = ToyDrafter::new(style);
        let verifier = VerifierChoice::Exact.at(&self.sampling);
        let settings = DecodeSettings {
            max_new_tokens: self.longest,
            draft: self.shape.clone(),
            sampling: self.sampling,
            stop: self.stop.clone(),
            shadow: None,
        };
        let mut rng = StdRng::seed_from_u64(seed);
        let generation = decoder.generate(&mut drafter, verifier, &PROMPT, &settings, &mut rng);
        let generation = generation.unwrap();
        let draft = Estimable::of(&self.shape, &self.sampling, verifier).unwrap();
        let draft = draft.with_confidence();
        let tokens = &generation.tokens;
        let found = match OwnText::read(target, &capture, &PROMPT, tokens, self.longest) {
            Some(text) => estimate(&drafter, &text, &draft).unwrap(),
            None => Estimate::default(),
        };
        (generation, found)
    }
}

/// The passes without the time that they took.
fn untimed(passes: &[PassRecord]) -> Vec<PassRecord> {
    let untimed = |pass: &PassRecord| PassRecord {
        seconds: Default::default(),
        together: 0,
        ..*pass
    };
    passes.iter().map(untimed).collect()
}

fn fixed_shapes() -> Vec<DraftShape> {
    let tree = |tree| DraftShape::Static {
        tree,
        children: Children::Top,
    };
    let wide: Vec<Vec<usize>> = vec![
        vec![0],
        vec![1],
        vec![2],
        vec![3],
        vec![4],
        // One child more than there are tokens: it is never drafted, nor what is behind it.
        vec![5],
        vec![5, 0],
        vec![1, 0],
        vec![1, 1],
        vec![1, 0, 0],
    ];
    let mut shapes: Vec<_> = (0..6)
        .map(|length| tree(StaticTree::chain(length.max(1))))
        .collect();
    shapes.extend(StaticTree::NAMES.map(|name| tree(StaticTree::named(name).unwrap())));
    shapes.push(tree(StaticTree::new(wide).unwrap()));
    shapes
}

#[test]
fn passes_with_the_likeliest_tokens_are_the_decoders_own() {
    let mut compared = 0;
    for shape in fixed_shapes() {
        for temperature in [0.0, 1.0, 0.6] {
            for (stop, longest) in [(vec![], 40), (vec![3], 40), (vec![0, 3], 7), (vec![], 2)] {
                let case = Case {
                    shape: shape.clone(),
                    sampling: Sampling::at(temperature),
                    stop,
                    longest,
                };
                for seed in 0..4 {
                    let (generation, found) = case.decode(&ToyTarget::default(), seed);
                    let expected = untimed(&generation.passes);
                    assert_eq!(found.passes, expected, "{shape:?} {temperature} {seed}");
                    assert_eq!(found.acceptance, Acceptance::of(&generation.passes));
                    compared += expected.iter().filter(|pass| pass.accepted > 0).count();
                }
            }
        }
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn the_context_of_the_target_ends_a_text_as_in_the_decoder() {
    let case = Case {
        shape: DraftShape::Chain { length: 4 },
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        longest: 100,
    };
    let (generation, found) = case.decode(&ToyTarget::with_positions(20), 0);
    assert_eq!(generation.tokens.len(), 17);
    assert_eq!(found.passes, untimed(&generation.passes));
}

/// The rules to stop that end some of the toy's chains and not all.
fn rules() -> Vec<Stop> {
    let by_head = [0.2, 0.5, 0.8].map(|threshold| (StopBy::Head, threshold));
    let by_entropy = [0.44, 0.46, 0.48, 0.5].map(|threshold| (StopBy::Entropy, threshold));
    let rule = |(by, threshold)| Stop { by, threshold };
    by_head.into_iter().chain(by_entropy).map(rule).collect()
}

#[test]
fn chains_that_end_early_are_judged_and_kept_as_the_decoder_does() {
    let (mut ended, mut compared) = (0, 0);
    for stop in rules() {
        for (end, longest) in [(vec![], 40), (vec![3], 40), (vec![0, 3], 7), (vec![], 2)] {
            let case = Case {
                shape: DraftShape::Confident { length: 4, stop },
                sampling: Sampling::GREEDY,
                stop: end,
                longest,
            };
            let (generation, found) = case.decode(&ToyTarget::default(), 0);
            let kept = |pass: &PassRecord| [pass.tested, pass.accepted, pass.emitted];
            let expected: Vec<_> = generation.passes.iter().map(kept).collect();
            let estimated: Vec<_> = found.passes.iter().map(kept).collect();
            assert_eq!(estimated, expected, "{stop:?} {longest}");
            assert!(found.is_as_decoded(&Acceptance::of(&generation.passes)));
            // All that is drafted in vain is known where nothing was.
            for (pass, found) in generation.passes.iter().zip(&found.passes) {
                if pass.accepted == pass.drafted && pass.emitted > pass.accepted {
                    assert_eq!(found.drafted, pass.drafted);
                    assert_eq!(found.draft_passes, pass.draft_passes);
                }
                ended += usize::from(pass.drafted < 4 && pass.tested == pass.drafted);
                compared += pass.accepted;
            }
        }
    }
    assert!(ended > 30 && compared > 20, "{ended} {compared}");
}

/// The text's probability, and the passes expected for it, summed over all texts of `longest` tokens after the prompt.
fn by_estimator(longest: usize, length: usize, (sampling, stop, rule): How) -> [f64; 2] {
    let (target, capture) = (ToyTarget::default(), Capture::default());
    let shape = match rule {
        None => DraftShape::Chain { length },
        Some(stop) => DraftShape::Confident { length, stop },
    };
    let verifier = VerifierChoice::Exact.at(&sampling);
    let draft = Estimable::of(&shape, &sampling, verifier).unwrap();
    let mut sums = [0.0; 2];
    let mut open: Vec<(Vec<u32>, f64)> = vec![(PROMPT.to_vec(), 1.0)];
    while let Some((text, chance)) = open.pop() {
        let answer = &text[PROMPT.len()..];
        let stopped = answer.last().is_some_and(|last| stop.contains(last));
        if answer.len() == longest || stopped {
            let passes = OwnText::read(&target, &capture, &PROMPT, answer, longest)
                .map(|own| estimate(&ToyDrafter::new(Style::Own), &own, &draft).unwrap())
                .map_or(0.0, |found| found.acceptance.passes);
            sums[0] += chance;
            sums[1] += chance * passes;
            continue;
        }
        let p = sampling.distribution(&logits(&text, TARGET)).probabilities;
        for token in 0..VOCAB as u32 {
            if p[token as usize] > 0.0 {
                let next = [&text[..], &[token]].concat();
                open.push((next, chance * p[token as usize] as f64));
            }
        }
    }
    sums
}

/// How tokens are drawn, the stop tokens, and where chains end early.
type How<'a> = (Sampling, &'a [u32], Option<Stop>);

/// The score of the step behind `text`, of which `drafted` tokens are the draft's.
fn score(text: &[u32], drafted: usize, (sampling, _, rule): How) -> f64 {
    match rule.map(|rule| rule.by) {
        None => 1.0,
        Some(StopBy::Entropy) => {
            acceptance_bound(sampling.distribution(&logits(text, OWN)).entropy())
        }
        Some(StopBy::Head) => (0..=drafted)
            .map(|step| text.len() - drafted + step)
            .map(|at| guess((at > text.len() - drafted).then(|| text[at - 1])) as f64)
            .product(),
    }
}

/// Passes that a decoder is expected to take after `text`, by going through every draft, verdict and token.
fn by_decoder(text: &[u32], limit: usize, length: usize, how: How) -> f64 {
    let (sampling, stop, rule) = how;
    let stopped = |text: &[u32]| text.last().is_some_and(|last| stop.contains(last));
    if text.len() == limit || stopped(text) {
        return 0.0;
    }
    let steps = length.min(limit - text.len() - 1);
    // Texts that the accepted part of the draft may have led to, each with its probability.
    let mut alive = vec![(text.to_vec(), 1.0)];
    let mut passes = 1.0;
    for step in 0..=steps {
        let mut next = Vec::new();
        for (text, chance) in alive {
            if stopped(&text) && step > 0 {
                continue;
            }
            let of = |salt| sampling.distribution(&logits(&text, salt)).probabilities;
            let (p, q) = (of(TARGET), of(OWN));
            let and = |token: usize| [&text[..], &[token as u32]].concat();
            let ends = rule.is_some_and(|rule| rule.ends(score(&text, step, how)));
            if step == steps || ends {
                for (token, p) in p.iter().enumerate() {
                    let behind = by_decoder(&and(token), limit, length, how);
                    passes += chance * *p as f64 * behind;
                }
                continue;
            }
            let kept: Vec<f64> = p.iter().zip(&q).map(|(p, q)| p.min(*q) as f64).collect();
            let rejected = 1.0 - kept.iter().sum::<f64>();
            let rest: Vec<f64> = p
                .iter()
                .zip(&q)
                .map(|(p, q)| (p - q).max(0.0) as f64)
                .collect();
            let total: f64 = rest.iter().sum();
            for token in 0..VOCAB {
                if rest[token] > 0.0 {
                    let behind = by_decoder(&and(token), limit, length, how);
                    passes += chance * rejected * rest[token] / total * behind;
                }
                if kept[token] > 0.0 {
                    next.push((and(token), chance * kept[token]));
                }
            }
        }
        alive = next;
    }
    passes
}

#[test]
fn expected_passes_over_all_texts_are_those_of_a_decoder_that_goes_through_every_draft() {
    let restricted = Sampling {
        temperature: 0.8,
        top_k: 3,
        top_p: 0.9,
    };
    let half = |by, threshold| Some(Stop { by, threshold });
    for sampling in [Sampling::at(1.0), Sampling::at(0.6), restricted] {
        for (length, stop, rule) in [
            (1, &[][..], None),
            (3, &[], None),
            (3, &[2], None),
            (6, &[0, 4], None),
            (3, &[2], half(StopBy::Entropy, 0.5)),
            (3, &[2], half(StopBy::Head, 0.5)),
        ] {
            let longest = 5;
            let how = (sampling, stop, rule);
            let [all, estimated] = by_estimator(longest, length, how);
            assert!((all - 1.0).abs() < 1e-5, "{all}");
            // The first token comes from the prompt's pass.
            let limit = PROMPT.len() + longest;
            let first = sampling
                .distribution(&logits(&PROMPT, TARGET))
                .probabilities;
            let decoded: f64 = (first.iter().enumerate())
                .map(|(token, &p)| {
                    let text = [&PROMPT[..], &[token as u32]].concat();
                    p as f64 * by_decoder(&text, limit, length, how)
                })
                .sum();
            assert!(
                (estimated - decoded).abs() < 1e-5 * decoded,
                "{sampling:?} {length} {stop:?}: {estimated} {decoded}"
            );
        }
    }
}

#[test]
fn an_estimate_has_the_mean_of_decoding_and_less_variance() {
    let case = Case {
        shape: DraftShape::Chain { length: 4 },
        sampling: Sampling::at(1.0),
        stop: Vec::new(),
        longest: 60,
    };
    let mut pairs = Vec::new();
    for seed in 0..400 {
        let (generation, found) = case.decode(&ToyTarget::default(), seed);
        let emitted = found.acceptance.emitted;
        assert!((emitted - 59.0).abs() < 1e-6, "{emitted}");
        let analytic = found.overlap.unwrap();
        pairs.push([
            generation.passes.len() as f64,
            found.acceptance.passes,
            analytic,
            found.variance,
        ]);
    }
    let mean = |column: usize| pairs.iter().map(|row| row[column]).sum::<f64>() / 400.0;
    let variance = |column| {
        let mean = mean(column);
        pairs
            .iter()
            .map(|row| (row[column] - mean).powi(2))
            .sum::<f64>()
            / 399.0
    };
    let apart = pairs
        .iter()
        .map(|row| (row[0] - row[1]).powi(2))
        .sum::<f64>()
        .sqrt()
        / 400.0;
    let z = (mean(0) - mean(1)) / apart;
    assert!(z.abs() < 4.0, "{z} standard errors");
    let (actual, most) = (400.0 * apart.powi(2), mean(3));
    assert!(0.05 * most < actual && actual < most, "{actual} {most}");
    assert!(
        variance(1) < 0.5 * variance(0),
        "{} {}",
        variance(1),
        variance(0)
    );
}

/// Fails unless two estimates are the same but for rounding.
fn assert_same(found: &Estimate, expected: &Estimate) {
    assert_eq!(found.passes, expected.passes);
    let figures = |of: &Estimate| {
        let counts = &of.acceptance;
        let mut figures = vec![counts.passes, counts.emitted, counts.drafted];
        figures.extend([of.draft_passes, of.overlap.unwrap_or(0.0), of.variance]);
        figures.extend(counts.survival());
        figures
    };
    let (all, others) = (figures(found), figures(expected));
    assert_eq!(all.len(), others.len());
    for (one, other) in all.iter().zip(&others) {
        assert!((one - other).abs() < 1e-5, "{found:?} {expected:?}");
    }
}

#[test]
fn shorter_chains_are_walked_over_what_the_longest_saw_as_by_themselves() {
    const LONGEST: usize = 5;
    let (target, capture) = (ToyTarget::default(), Capture::default());
    let drafter = ToyDrafter::new(Style::Own);
    let chains: [fn(usize) -> DraftShape; 2] = [
        |length| DraftShape::Chain { length },
        |length| DraftShape::Static {
            tree: StaticTree::chain(length),
            children: Children::Top,
        },
    ];
    for (chain, temperature) in [(0, 0.0), (0, 1.0), (0, 0.6), (1, 1.0)] {
        let (chain, sampling) = (chains[chain], Sampling::at(temperature));
        let verifier = VerifierChoice::Exact.at(&sampling);
        let draft = |length| Estimable::of(&chain(length), &sampling, verifier).unwrap();
        for (stop, longest) in [(vec![], 40), (vec![3], 40), (vec![0, 3], 7), (vec![], 2)] {
            let case = Case {
                shape: chain(LONGEST),
                sampling,
                stop,
                longest,
            };
            let (generation, _) = case.decode(&target, 1);
            let text = OwnText::read(&target, &capture, &PROMPT, &generation.tokens, longest);
            // None where the first token ends the text.
            let Some(text) = text else { continue };
            let foreseen = foresee(&drafter, &text, &draft(LONGEST), &|| Ok(())).unwrap();
            let shorter = draft(LONGEST).shorter();
            assert_eq!(shorter, Vec::from_iter((1..LONGEST).map(draft)));
            for shorter in &shorter {
                let found = foreseen.walk(&drafter, &text, shorter);
                assert_same(&found, &estimate(&drafter, &text, shorter).unwrap());
            }
        }
    }
}

#[test]
fn accepted_steps_are_those_that_the_analytic_rate_expects() {
    let case = Case {
        shape: DraftShape::Chain { length: 4 },
        sampling: Sampling::at(1.0),
        stop: Vec::new(),
        longest: 60,
    };
    let (mut kept, mut expected, mut judged) = (0.0, 0.0, 0.0);
    for seed in 0..300 {
        let (_, found) = case.decode(&ToyTarget::default(), seed);
        kept += found.acceptance.emitted - found.acceptance.passes;
        expected += found.overlap.unwrap();
        judged += found.acceptance.tested.iter().sum::<f64>();
    }
    let (alpha, analytic) = (kept / judged, expected / judged);
    assert!((alpha - analytic).abs() < 0.01, "{alpha} {analytic}");
}

#[test]
fn confidence_is_compared_with_what_was_kept_of_the_steps_that_were_judged() {
    for temperature in [0.0, 0.7] {
        let tree = StaticTree::chain(3);
        let children = Children::Top;
        let case = Case {
            shape: DraftShape::Static { tree, children },
            sampling: Sampling::at(temperature),
            stop: Vec::new(),
            longest: 60,
        };
        let own = Sampling::at(if temperature == 0.0 { 1.0 } else { temperature });
        let (mut expected, mut head) = (Reliability::default(), Reliability::default());
        let (mut found, mut judged) = ([Reliability::default(), Reliability::default()], 0);
        for seed in 0..20 {
            let (generation, estimate) = case.decode(&ToyTarget::default(), seed);
            let text = [&PROMPT[..], &generation.tokens].concat();
            let mut place = PROMPT.len();
            for pass in &generation.passes {
                let last = text.len() - 1 - (place + 1);
                for step in 0..pass.tested.min(last) {
                    let q = own.distribution(&logits(&text[..=place + step], OWN));
                    let largest = q.probabilities.iter().copied().fold(0.0, f32::max);
                    let right = f64::from(u8::from(step < pass.accepted));
                    expected.add(largest as f64, 1.0, right);
                    let before = (step > 0).then(|| text[place + step]);
                    head.add(guess(before) as f64, 1.0, right);
                    judged += 1;
                }
                place += pass.emitted;
            }
            found[0].merge(&estimate.likeliest);
            found[1].merge(&estimate.head);
        }
        assert!(judged > 100, "{judged}");
        for (found, expected) in found.iter().zip([&expected, &head]) {
            let (found, expected) = (found.ece().unwrap(), expected.ece().unwrap());
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
}

#[test]
fn a_drafter_that_is_the_target_knows_itself_and_a_flatter_one_does_not() {
    let likeliest = DraftShape::Static {
        tree: StaticTree::chain(4),
        children: Children::Top,
    };
    for shape in [DraftShape::Chain { length: 4 }, likeliest] {
        let case = Case {
            shape,
            sampling: Sampling::at(0.3),
            stop: Vec::new(),
            longest: 60,
        };
        let error = |style| {
            let mut pooled = Reliability::default();
            for seed in 0..150 {
                let (_, found) = case.decode_with(style, &ToyTarget::default(), seed);
                pooled.merge(&found.likeliest);
            }
            pooled.ece().unwrap()
        };
        let (same, other) = (error(Style::Oracle), error(Style::Own));
        assert!(same < 0.02, "{same}");
        assert!(other > 0.2, "{other}");
    }
}

#[test]
fn drafts_whose_counts_hang_on_other_branches_are_left_to_the_decoder() {
    let exact = |sampling: &Sampling| VerifierChoice::Exact.at(sampling);
    let dynamic = DraftShape::Dynamic {
        depth: 3,
        top_k: 2,
        nodes: 5,
    };
    let greedy = Sampling::GREEDY;
    assert_eq!(Estimable::of(&dynamic, &greedy, exact(&greedy)), None);
    let drawn = DraftShape::Static {
        tree: StaticTree::named("eagle-25").unwrap(),
        children: Children::WithoutReplacement,
    };
    let warm = Sampling::at(1.0);
    assert_eq!(Estimable::of(&drawn, &warm, exact(&warm)), None);
    assert!(Estimable::of(&drawn, &greedy, exact(&greedy)).is_some());
    let chain = DraftShape::Chain { length: 3 };
    let block = VerifierChoice::Block.at(&warm);
    assert_eq!(Estimable::of(&chain, &warm, block), None);
}

#[test]
fn a_token_that_the_target_cannot_draw_is_accepted_where_it_is_drafted_at_all() {
    let (target, capture) = (ToyTarget::default(), Capture::default());
    let sampling = Sampling {
        top_k: 1,
        ..Sampling::at(1.0)
    };
    let shape = DraftShape::Chain { length: 1 };
    let verifier = VerifierChoice::Exact.at(&sampling);
    let draft = Estimable::of(&shape, &sampling, verifier).unwrap();
    // Tokens that the target cannot draw, and the drafter always or never.
    for (drafted, passes) in [(true, 2.0), (false, 3.0)] {
        let fits = |answer: &[u32; 4]| {
            (1..3).all(|at| {
                let text = [&PROMPT[..], &answer[..at]].concat();
                let best = |salt| argmax(&logits(&text, salt)) as u32;
                answer[at] != best(TARGET) && (answer[at] == best(OWN)) == drafted
            })
        };
        let answer = |number: usize| [1, 5, 25, 125].map(|unit| (number / unit % VOCAB) as u32);
        let answer = (0..625).map(answer).find(fits).unwrap();
        let own = OwnText::read(&target, &capture, &PROMPT, &answer, 4).unwrap();
        let found = estimate(&ToyDrafter::new(Style::Own), &own, &draft).unwrap();
        assert_eq!(found.acceptance.passes, passes);
    }
}

/// A target that makes logits of the last token of a pass alone.
struct OfLast(ToyTarget);

impl Target for OfLast {
    fn spec(&self) -> &TargetSpec {
        self.0.spec()
    }

    fn device(&self) -> Device {
        self.0.device()
    }

    fn parameters(&self) -> u64 {
        self.0.parameters()
    }

    fn parameters_per_pass(&self) -> u64 {
        self.0.parameters_per_pass()
    }

    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn parts(&self) -> TargetParts {
        self.0.parts()
    }

    fn decode(&self, pass: Pass, caches: &mut Caches, capture: &Capture) -> TargetOutput {
        assert_eq!(pass.logits, LogitRows::Last);
        self.0.decode(pass, caches, capture)
    }
}

#[test]
fn logits_of_an_answer_are_made_where_they_are_wanted_and_each_once() {
    let (target, capture) = (OfLast(ToyTarget::default()), Capture::default());
    let text = OwnText::read(&target, &capture, &PROMPT, &[1, 2, 3, 0], 4).unwrap();
    for rows in [&[0][..], &[2], &[0, 1, 2], &[2, 0, 0, 2]] {
        let of_row = |row: &usize| logits(&text.tokens[..=text.first + row], TARGET);
        let expected: Vec<f32> = rows.iter().flat_map(of_row).collect();
        assert_eq!(host_rows(text.judges.logits(rows)).unwrap(), expected);
    }
    // An answer of two tokens has one row.
    let text = OwnText::read(&target, &capture, &PROMPT, &[1, 2], 4).unwrap();
    let expected = logits(&text.tokens[..=text.first], TARGET);
    assert_eq!(host_rows(text.judges.logits(&[0])).unwrap(), expected);
}

#[test]
fn logits_that_are_none_are_an_error() {
    let target = ToyTarget::broken();
    let capture = Capture::default();
    let text = OwnText::read(&target, &capture, &PROMPT, &[1, 2, 3, 0], 4).unwrap();
    let drafter = ToyDrafter::new(Style::Own);
    let shape = DraftShape::Chain { length: 2 };
    let warm = Sampling::at(1.0);
    let draft = Estimable::of(&shape, &warm, VerifierChoice::Exact.at(&warm)).unwrap();
    let error = estimate(&drafter, &text, &draft).unwrap_err();
    assert!(error.to_string().contains("not-a-number"), "{error}");
}

#[test]
fn an_estimate_that_is_interrupted_looks_no_further() {
    let (target, capture) = (ToyTarget::default(), Capture::default());
    let text = OwnText::read(&target, &capture, &PROMPT, &[1, 2, 3, 0, 1, 2], 6).unwrap();
    let drafter = ToyDrafter::new(Style::Own);
    let sampling = Sampling {
        top_k: 2,
        ..Sampling::at(1.0)
    };
    let shape = DraftShape::Chain { length: 3 };
    let draft = Estimable::of(&shape, &sampling, VerifierChoice::Exact.at(&sampling)).unwrap();
    let asked = Cell::new(0);
    let check = || {
        asked.set(asked.get() + 1);
        (asked.get() < 3).then_some(()).ok_or(Error::Interrupted)
    };
    let found = foresee(&drafter, &text, &draft, &check);
    assert!(found.err().unwrap().is_interruption());
    assert_eq!(asked.get(), 3);
}
