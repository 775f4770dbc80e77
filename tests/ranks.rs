//! Several ranks that train one drafter: what they leave is what one leaves that takes all batches itself.
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use burn::prelude::*;
use spectrain_checkpoints::{NamedTensor, state};
use spectrain_models::Drafter;
use spectrain_models::device::test_device_of;
use spectrain_models::eagle3::Eagle3;
use spectrain_models::language_model::LanguageModel;
use spectrain_models::medusa::{Medusa, MedusaConfig};
use spectrain_models::pard::Pard;
use spectrain_models::weights::host_f32;
use spectrain_train::{
    ByRank, Distill, Error, FitSummary, HeadsLoss, HeadsLossConfig, Invitation, Objective,
    OptimizerName, PardLoss, Ranks as _, TcpRanks, Together, Train, TrainingTimeTest,
};

use crate::patience::waiting;
use crate::sessions::{
    Session, Trained, dropped_settings, eagle3_settings, figures, on_policy_settings, train_and,
    train_as,
};

/// Does something on so many ranks, each a thread; one may panic.
fn joined<T: Send>(
    count: usize,
    work: &(dyn Fn(TcpRanks) -> T + Sync),
) -> Vec<std::thread::Result<T>> {
    let invitation = Invitation::open("127.0.0.1:0", count, "test").unwrap();
    let address = invitation.address().unwrap().to_string();
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..count)
            .map(|rank| {
                let address = &address;
                scope.spawn(move || work(join(address, (rank, count), "test").unwrap()))
            })
            .collect();
        let first = work(invitation.meet(None, &mut || Ok(())).unwrap());
        let others = others.into_iter().map(|rank| rank.join());
        std::iter::once(Ok(first)).chain(others).collect()
    })
}

/// Trains on so many ranks, each a thread; `session` makes that of a rank.
fn together<D, O>(
    count: usize,
    settings: (&D::Config, &O::Config),
    folder: &Path,
    session: &(dyn Fn(usize) -> Session + Sync),
) -> Vec<Result<Trained, Error>>
where
    D: Drafter + 'static,
    O: Objective<D>,
    D::Config: Sync,
{
    let trained = joined(count, &|mut ranks| {
        let session = session(ranks.rank());
        train_as::<D, O>(settings, folder, &session, Some(&mut ranks))
    });
    let told = |trained: std::thread::Result<_>| match trained {
        Ok(trained) => trained,
        Err(_) => Err(Error::Features("the thread has panicked".into())),
    };
    trained.into_iter().map(told).collect()
}

#[test]
fn pieces_are_shared_out_and_gathered_in_their_order_whoever_made_them() {
    for count in [1, 2, 3] {
        let made = joined(count, &|mut ranks| {
            let rank = ranks.rank();
            let mut together = Together(Some(&mut ranks));
            let own: Vec<_> = (0..7).filter(|&piece| together.takes(piece)).collect();
            let own = own.into_iter().rev().map(|piece| (piece, (piece, rank)));
            together.gather_pieces(Ok(own.collect())).unwrap()
        });
        let expected: Vec<_> = (0..7).map(|piece| (piece, piece % count)).collect();
        for made in made {
            assert_eq!(made.unwrap(), expected);
        }
    }
}

/// What rank `from` sends in its `nth` message to `to`: tensors of odd lengths, some without elements.
fn sent(from: usize, to: usize, nth: usize) -> Vec<Vec<f32>> {
    let lengths = [1, 300 + 7 * from, 33 * to + nth, 70_001];
    let value =
        |length: usize| (0..length).map(move |at| (at * 7 + from * 1000 + to * 100 + nth) as f32);
    lengths.map(|length| value(length).collect()).into()
}

#[test]
fn tensors_go_from_rank_to_rank_as_they_are() {
    for count in [2, 3] {
        let found = joined(count, &|mut ranks| {
            let own = ranks.rank();
            let device = test_device_of(own);
            let tensors = |values: Vec<Vec<f32>>| -> Vec<Tensor<1>> {
                let each = values
                    .iter()
                    .map(|of| Tensor::from_floats(of.as_slice(), &device));
                each.collect()
            };
            for nth in 0..3 {
                let others = |of: &dyn Fn(usize) -> Vec<Vec<f32>>| -> Vec<Vec<Vec<f32>>> {
                    let each =
                        (0..count).map(|rank| if rank == own { Vec::new() } else { of(rank) });
                    each.collect()
                };
                let lengths = |of: &[Vec<Vec<f32>>]| -> Vec<Vec<usize>> {
                    of.iter()
                        .map(|of| of.iter().map(Vec::len).collect())
                        .collect()
                };
                let read = |found: ByRank| -> Vec<Vec<Vec<f32>>> {
                    let of_rank = |of: Vec<Tensor<1>>| of.into_iter().map(host_f32).collect();
                    found.into_iter().map(of_rank).collect()
                };
                let to_each = others(&|to| sent(own, to, nth))
                    .into_iter()
                    .map(tensors)
                    .collect();
                let expected = others(&|from| sent(from, own, nth));
                let found = ranks.exchange_tensors(to_each, &lengths(&expected), &device);
                assert!(read(found.unwrap()) == expected, "to {own} of {count}");
                let expected = others(&|from| sent(from, from, nth));
                let same = tensors(sent(own, own, nth));
                let found = ranks.spread_tensors(same, &lengths(&expected), &device);
                assert!(read(found.unwrap()) == expected, "to all, {own} of {count}");
            }
            // Nobody ends before the others have all.
            let all = Together(Some(&mut ranks)).gather_pieces(Ok(vec![(own, own)]));
            assert_eq!(all.unwrap().len(), count);
        });
        assert!(found.iter().all(Result::is_ok), "{count}");
    }
}

#[test]
fn whoever_waits_for_tensors_of_a_rank_that_has_ended_is_told() {
    let found = joined(2, &|mut ranks| {
        let own = ranks.rank();
        let device = test_device_of(own);
        let mut spread = || {
            let same = vec![Tensor::from_floats([1.5; 300], &device)];
            let lengths = [1 - own, own].map(|there| vec![300; 1 - there]);
            ranks.spread_tensors(same, &lengths, &device).map(drop)
        };
        spread().unwrap();
        match own {
            0 => spread().unwrap_err().to_string(),
            _ => String::new(),
        }
    });
    assert_eq!(found[0].as_ref().unwrap(), "rank 1 has ended");
}

/// Ranks with a validation at step 4 that does not end on one of them, and then one rank that goes on from the step that was `kept`: all
/// is as if it had ended.
fn validation_is_made_up_for(
    count: usize,
    kept: u64,
    in_validation: fn(usize, usize) -> Result<(), Error>,
) {
    let (config, objective) = eagle3_settings();
    let settings = (&config, &objective);
    let [alone, shared] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let expected =
        train_as::<Eagle3, TrainingTimeTest>(settings, alone.path(), &accumulating(count), None)
            .unwrap();
    let found =
        together::<Eagle3, TrainingTimeTest>(count, settings, shared.path(), &|rank| Session {
            in_validation: Box::new(move |step| in_validation(rank, step)),
            ..accumulating(count)
        });
    for trained in found {
        match trained {
            Ok((summary, _)) => assert_eq!((summary.steps, summary.interrupted), (4, true)),
            Err(error) => {
                let told = error.to_string();
                assert!(
                    count > 2
                        && ["has ended", "has panicked"]
                            .iter()
                            .any(|word| told.contains(word)),
                    "{told}"
                );
            }
        }
    }
    let saved = state::list(shared.path()).unwrap();
    assert_eq!(saved.last().unwrap().step, kept);
    let (summary, weights) =
        train_as::<Eagle3, TrainingTimeTest>(settings, shared.path(), &accumulating(count), None)
            .unwrap();
    assert_eq!(figures(&summary), figures(&expected.0));
    assert!(weights == expected.1);
}

#[test]
fn a_validation_that_is_interrupted_on_one_rank_is_so_on_all_and_made_up_for() {
    validation_is_made_up_for(2, 4, |rank, step| match (rank, step) {
        (1, 4) => Err(Error::Interrupted),
        _ => Ok(()),
    });
}

#[test]
fn a_rank_that_dies_in_a_validation_ends_all_and_it_is_made_up_for() {
    validation_is_made_up_for(3, 3, |rank, step| {
        assert!((rank, step) != (2, 4), "as planned");
        Ok(())
    });
}

fn accumulating(batches: usize) -> Session {
    Session::with(|train| train.gradient_accumulation = batches)
}

fn ranks_equal_one<D, O>(count: usize, settings: (&D::Config, &O::Config))
where
    D: Drafter + 'static,
    O: Objective<D>,
    D::Config: Sync,
{
    ranks_of_sessions_equal_one::<D, O>(count, settings, &|| accumulating(count));
}

/// Trains on one rank and on several, which leave the same; returns what the one has found.
fn ranks_of_sessions_equal_one<D, O>(
    count: usize,
    settings: (&D::Config, &O::Config),
    session: &(dyn Fn() -> Session + Sync),
) -> FitSummary
where
    D: Drafter + 'static,
    O: Objective<D>,
    D::Config: Sync,
{
    let [alone, shared] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (expected, weights) = train_as::<D, O>(settings, alone.path(), &session(), None).unwrap();
    let found = together::<D, O>(count, settings, shared.path(), &|_| session());
    for (rank, trained) in found.into_iter().enumerate() {
        let (summary, own) = trained.unwrap();
        assert!(own == weights, "rank {rank} of {count}");
        if rank == 0 {
            assert_eq!(figures(&summary), figures(&expected));
        }
    }
    let states = [alone.path(), shared.path()].map(|folder| {
        let saved = state::list(folder).unwrap();
        let last = state::load(&saved.last().unwrap().path).unwrap();
        (saved.len(), last.tensors)
    });
    assert!(
        states[0] == states[1],
        "weights and moments of {count} ranks"
    );
    expected
}

#[test]
fn two_and_three_ranks_train_eagle3_as_one_does_bitwise() {
    let (config, objective) = eagle3_settings();
    for count in [2, 3] {
        ranks_equal_one::<Eagle3, TrainingTimeTest>(count, (&config, &objective));
    }
}

#[test]
fn ranks_that_share_out_muon_and_keep_a_mean_of_the_weights_train_as_one_does_bitwise() {
    let (config, objective) = eagle3_settings();
    // Four ranks meet each other by more than one way.
    for (count, ema_decay) in [(2, 0.9), (4, 0.0)] {
        let session = || {
            Session::with(|train| {
                train.gradient_accumulation = count;
                train.optimizer = OptimizerName::Muon;
                train.ema_decay = ema_decay;
            })
        };
        let settings = (&config, &objective);
        ranks_of_sessions_equal_one::<Eagle3, TrainingTimeTest>(count, settings, &session);
    }
}

#[test]
fn ranks_that_wait_for_no_further_validation_end_at_the_same_step() {
    let (config, objective) = eagle3_settings();
    let settings = (&config, &objective);
    let found =
        ranks_of_sessions_equal_one::<Eagle3, TrainingTimeTest>(2, settings, &|| waiting(1));
    assert_eq!((found.steps, found.out_of_patience), (4, Some(1)));
}

#[test]
fn each_rank_keeps_the_optimisers_state_of_other_parameters() {
    let (config, objective) = eagle3_settings();
    let moments = |trainee: &dyn Train| {
        let (_, state) = trainee.optimizer();
        state.into_iter().map(|of| (of.name, of.bytes.len()))
    };
    let found = joined(3, &|mut ranks| {
        let mut trained = None;
        let folder = tempfile::tempdir().unwrap();
        let session = accumulating(3);
        let settings = (&config, &objective);
        let with = &mut |trainee: &dyn Train| trained = Some(moments(trainee).collect::<Vec<_>>());
        train_and::<Eagle3, TrainingTimeTest>(
            settings,
            folder.path(),
            &session,
            Some(&mut ranks),
            with,
        )
        .unwrap();
        trained.unwrap()
    });
    let found: Vec<Vec<(String, usize)>> = found.into_iter().map(Result::unwrap).collect();
    let bytes = found
        .iter()
        .map(|of| of.iter().map(|(_, bytes)| bytes).sum());
    let bytes: Vec<usize> = bytes.collect();
    let mut names: Vec<_> = found.iter().flatten().map(|(name, _)| name).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all, "no state is on two ranks");
    let most = bytes.iter().max().unwrap();
    let total: usize = bytes.iter().sum();
    assert!(most * 2 < total, "{bytes:?}");
}

#[test]
fn ranks_train_heads_that_take_turns_as_one_does_bitwise() {
    let (config, objective) = (MedusaConfig::default(), HeadsLossConfig::default());
    ranks_equal_one::<Medusa, HeadsLoss>(2, (&config, &objective));
}

#[test]
fn ranks_that_draw_and_write_their_own_texts_train_as_one_does_bitwise() {
    let (config, objective) = on_policy_settings(0.5);
    ranks_equal_one::<LanguageModel, Distill>(2, (&config, &objective));
    let (config, objective) = dropped_settings();
    ranks_equal_one::<Pard, PardLoss>(2, (&config, &objective));
}

fn distance(ours: &[NamedTensor], theirs: &[NamedTensor]) -> f32 {
    let pairs = ours.iter().zip(theirs).flat_map(|(ours, theirs)| {
        assert_eq!(ours.name, theirs.name);
        let values = [ours, theirs].map(|of| of.to_f32().unwrap());
        let [ours, theirs] = values;
        ours.into_iter().zip(theirs)
    });
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn ranks_with_several_batches_each_differ_by_rounding_alone() {
    let (config, objective) = eagle3_settings();
    let settings = (&config, &objective);
    let [alone, shared] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (_, weights) =
        train_as::<Eagle3, TrainingTimeTest>(settings, alone.path(), &accumulating(4), None)
            .unwrap();
    let found =
        together::<Eagle3, TrainingTimeTest>(2, settings, shared.path(), &|_| accumulating(4));
    for trained in found {
        let apart = distance(&trained.unwrap().1, &weights);
        assert!(apart < 2e-5, "{apart}");
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let (config, objective) = eagle3_settings();
    let settings = (&config, &objective);
    let [alone, shared] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let expected =
        train_as::<Eagle3, TrainingTimeTest>(settings, alone.path(), &accumulating(2), None)
            .unwrap();
    // One rank of two is told to stop, and both do.
    let found = together::<Eagle3, TrainingTimeTest>(2, settings, shared.path(), &|rank| Session {
        stop_after: if rank == 1 { 3 } else { usize::MAX },
        ..accumulating(2)
    });
    for trained in found {
        let (summary, _) = trained.unwrap();
        assert_eq!((summary.steps, summary.interrupted), (3, true));
    }
    let until = Session {
        stop_after: 4,
        ..accumulating(2)
    };
    let (summary, _) =
        train_as::<Eagle3, TrainingTimeTest>(settings, shared.path(), &until, None).unwrap();
    assert_eq!(summary.steps, 7);
    let found =
        together::<Eagle3, TrainingTimeTest>(2, settings, shared.path(), &|_| accumulating(2));
    for trained in found {
        assert!(trained.unwrap().1 == expected.1);
    }
}

#[test]
fn a_rank_that_dies_ends_all_and_what_was_saved_last_goes_on() {
    let (config, objective) = eagle3_settings();
    let settings = (&config, &objective);
    let [alone, shared] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let expected =
        train_as::<Eagle3, TrainingTimeTest>(settings, alone.path(), &accumulating(3), None)
            .unwrap();
    let mut found =
        together::<Eagle3, TrainingTimeTest>(3, settings, shared.path(), &|rank| Session {
            // Behind what was saved last: with it goes a part of the optimiser's state.
            dies_after: if rank == 2 { 5 } else { usize::MAX },
            ..accumulating(3)
        });
    let [Err(other), Err(first)] = [found.remove(1), found.remove(0)] else {
        panic!("a rank that is alone has trained to the end");
    };
    assert_eq!(first.to_string(), "rank 2 has ended");
    assert_eq!(other.to_string(), "rank 0 has ended");
    let saved = state::list(shared.path()).unwrap();
    assert_eq!(saved.last().unwrap().step, 4);
    let (_, weights) =
        train_as::<Eagle3, TrainingTimeTest>(settings, shared.path(), &accumulating(3), None)
            .unwrap();
    assert!(weights == expected.1);
}

fn join(address: &str, here: (usize, usize), identity: &str) -> Result<TcpRanks, Error> {
    let patience = Duration::from_secs(60);
    let joined = TcpRanks::join(address, here, identity, patience, &mut || Ok(()));
    joined.map(|ranks| ranks.expect("rank 0 has something to do together"))
}

#[test]
fn ranks_are_dismissed_as_they_come_where_there_is_nothing_to_do_together() {
    let invitation = Invitation::open("127.0.0.1:0", 3, "mine").unwrap();
    let address = invitation.address().unwrap().to_string();
    std::thread::scope(|scope| {
        let patience = Duration::from_secs(60);
        let dismissed = scope.spawn(move || invitation.dismiss(patience, &mut || Ok(())));
        let come = |rank: usize, identity: &str| {
            TcpRanks::join(&address, (rank, 3), identity, patience, &mut || Ok(()))
        };
        let refused = come(1, "foreign").unwrap_err().to_string();
        assert!(refused.contains("not those of rank 0"), "{refused}");
        for rank in [2, 1] {
            assert!(come(rank, "mine").unwrap().is_none(), "{rank}");
        }
        dismissed.join().unwrap().unwrap();
    });
    // Whoever does not come is waited for as long as is said.
    let invitation = Invitation::open("127.0.0.1:0", 2, "mine").unwrap();
    let given_up = invitation.dismiss(Duration::ZERO, &mut || Ok(()));
    let given_up = given_up.unwrap_err().to_string();
    assert_eq!(given_up, "rank 0 has waited too long for rank 1");
}

#[test]
fn whoever_is_no_rank_of_the_run_is_sent_away() {
    let invitation = Invitation::open("127.0.0.1:0", 2, "mine").unwrap();
    let address = invitation.address().unwrap().to_string();
    std::thread::scope(|scope| {
        let met = scope.spawn(|| invitation.meet(None, &mut || Ok(())).unwrap());
        for (here, identity, words) in [
            ((1, 2), "foreign", "not those of rank 0"),
            ((1, 3), "mine", "expected 2 ranks (WORLD_SIZE), found 3"),
            ((0, 2), "mine", "from 1 to 1 (RANK), found 0"),
            ((2, 2), "mine", "from 1 to 1 (RANK), found 2"),
        ] {
            let refused = join(&address, here, identity).unwrap_err().to_string();
            assert!(
                refused.contains("rank 0 refuses") && refused.contains(words),
                "{refused}"
            );
        }
        for junk in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 8], &[255; 64]] {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(junk).unwrap();
        }
        let second = join(&address, (1, 2), "mine").unwrap();
        let first = met.join().unwrap();
        assert_eq!((first.rank(), first.count()), (0, 2));
        assert_eq!((second.rank(), second.count()), (1, 2));
    });
    let mut tries = 0;
    let given_up = TcpRanks::join(&address, (1, 2), "mine", Duration::ZERO, &mut || {
        tries += 1;
        Ok(())
    });
    let given_up = given_up.unwrap_err().to_string();
    assert!(
        given_up.contains("does not answer at 127.0.0.1"),
        "{given_up}"
    );
    assert_eq!(tries, 1);
}
