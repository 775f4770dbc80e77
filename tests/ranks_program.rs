//! `spectrain recipe` on several devices, and as one of several processes that something else has started.
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use crate::workspace::{ENDLESS, Outcome, Workspace, signal, wait_for};

/// Two batches of a step, one for each rank.
const SETTINGS: &str = "recipe recipe.toml --set train.gradient_accumulation=2";

/// The trained drafter, the answers that it was validated with, and the figures of training and validations.
fn trained(workspace: &Workspace) -> Vec<Vec<u8>> {
    let weights = workspace.bytes("runs/run/train/drafter/model.safetensors");
    let answers = workspace.bytes("runs/run/train/answers.json");
    let metrics = workspace.text("runs/run/train/events/metrics.jsonl");
    let timeless = metrics.lines().map(|line| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        let line = line.as_object_mut().unwrap();
        line.retain(|key, _| key != "time" && key != "train/tokens_per_second");
        format!("{line:?}\n").into_bytes()
    });
    [weights, answers].into_iter().chain(timeless).collect()
}

/// A port that nobody listens at.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A port at which the test listens, below one that nobody listens at.
fn taken_port() -> (TcpListener, u16) {
    let below_a_free_one = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let next = TcpListener::bind(("127.0.0.1", port.checked_add(1)?)).ok()?;
        drop(next);
        Some((listener, port))
    };
    (0..100).find_map(|_| below_a_free_one()).unwrap()
}

/// One of two processes, as `srun` and its like start them.
fn rank(workspace: &Workspace, rank: usize, port: u16, words: &str) -> Child {
    rank_with(workspace, (rank, port), words, &[])
}

/// The same, with more in its environment.
fn rank_with(
    workspace: &Workspace,
    (rank, port): (usize, u16),
    words: &str,
    environment: &[(&str, &str)],
) -> Child {
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = workspace.command(&words);
    command.env("RANK", rank.to_string());
    command.env("LOCAL_RANK", rank.to_string());
    command.env("WORLD_SIZE", "2");
    command.env("MASTER_ADDR", "127.0.0.1");
    command.env("MASTER_PORT", port.to_string());
    command.envs(environment.iter().copied());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn outcome(child: Child) -> Outcome {
    Outcome::from(child.wait_with_output().unwrap())
}

#[test]
fn three_devices_leave_what_one_does_where_one_of_them_has_more_to_validate() {
    let settings =
        "recipe recipe.toml --set train.gradient_accumulation=3 --set train.decode_prompts=4";
    let alone = Workspace::new();
    alone.run_line(settings).succeeded();
    let devices = Workspace::new();
    devices
        .run_line(format!("{settings} --devices cpu,cpu,cpu"))
        .succeeded();
    assert!(trained(&alone).len() > 4, "there are validations");
    assert_eq!(trained(&devices), trained(&alone));
}

#[test]
fn two_devices_leave_what_one_does_and_so_do_processes_that_others_start() {
    let alone = Workspace::new();
    alone.run_line(SETTINGS).succeeded();
    let devices = Workspace::new();
    let told = devices
        .run_line(format!("{SETTINGS} --devices cpu,cpu"))
        .succeeded();
    assert!(!told.stderr.contains("rank 1:"), "{told:#?}");
    assert_eq!(trained(&devices), trained(&alone));
    // All is done: no other rank is needed.
    devices
        .run_line(format!("{SETTINGS} --devices cpu,cpu"))
        .succeeded();

    let processes = Workspace::new();
    let port = free_port();
    let other = rank(&processes, 1, port, SETTINGS);
    let first = rank(&processes, 0, port, SETTINGS);
    outcome(first).succeeded();
    let other = outcome(other).succeeded();
    assert!(other.stdout.is_empty(), "{other:#?}");
    assert_eq!(trained(&processes), trained(&alone));
    // The same command once more: all is done, whichever of them comes first.
    for order in [[1, 0], [0, 1]] {
        let port = free_port();
        let again = order.map(|number| rank(&processes, number, port, SETTINGS));
        for child in again {
            let told = outcome(child).succeeded();
            assert!(!told.stderr.contains("not all other ranks"), "{told:#?}");
        }
    }
    // Nor where only the evaluation is left.
    let port = free_port();
    let words = format!("{SETTINGS} --set evaluate.seed=7");
    let again = [0, 1].map(|number| rank(&processes, number, port, &words));
    let [told, _] = again.map(|child| outcome(child).succeeded());
    let starts_over = "evaluate: starts over: `evaluate.seed`";
    assert!(told.stderr.contains(starts_over), "{told:#?}");
}

#[test]
fn ranks_meet_beside_the_port_at_which_the_agent_of_torchrun_listens() {
    let workspace = Workspace::new();
    let (agent, port) = taken_port();
    let environment = [("TORCHELASTIC_USE_AGENT_STORE", "True")];
    let words = format!("{SETTINGS} --stage prepare --stage train");
    let ranks = [0, 1].map(|rank| rank_with(&workspace, (rank, port), &words, &environment));
    for rank in ranks {
        outcome(rank).succeeded();
    }
    drop(agent);
    assert_eq!(workspace.manifest("train")["status"], "done");
}

/// Starts both ranks of a training that does not end, and waits until its first state is saved.
fn endless(workspace: &Workspace) -> [Child; 2] {
    let port = free_port();
    let words = format!("{SETTINGS} --set train.steps={ENDLESS} --set train.save_every=2");
    let [mut first, other] = [0, 1].map(|number| rank(workspace, number, port, &words));
    let state = workspace.path("runs/run/train/step-00000002");
    wait_for(&mut first, || state.exists());
    [first, other]
}

#[test]
fn a_rank_that_is_killed_is_named_and_what_was_trained_is_kept() {
    let workspace = Workspace::new();
    let [first, mut other] = endless(&workspace);
    other.kill().unwrap();
    let told = outcome(first).failed(&["stage `train`", "rank 1 has ended"]);
    assert!(told.stderr.contains("is kept"), "{told:#?}");
    let _ = other.wait();
}

#[cfg(target_os = "linux")]
#[test]
fn a_rank_that_was_started_here_and_is_killed_is_named_with_the_signal() {
    let workspace = Workspace::new();
    let settings = ["train.gradient_accumulation=2", "train.save_every=2"];
    let steps = format!("train.steps={ENDLESS}");
    let settings = settings.iter().copied().chain([&*steps]);
    let words = ["recipe", "recipe.toml", "--devices", "cpu,cpu"].into_iter();
    let words: Vec<&str> = words
        .chain(settings.flat_map(|setting| ["--set", setting]))
        .collect();
    let mut first = workspace.start(&words);
    let state = workspace.path("runs/run/train/step-00000002");
    wait_for(&mut first, || state.exists());
    let [other] = children(first.id())[..] else {
        panic!("there is one other rank");
    };
    let kill = ["-KILL", &other.to_string()];
    assert!(Command::new("kill").args(kill).status().unwrap().success());
    outcome(first).failed(&["stage `train`", "rank 1 has ended: killed by signal 9"]);
}

/// The processes that one has started.
#[cfg(target_os = "linux")]
fn children(of: u32) -> Vec<u32> {
    let parent = format!("PPid:\t{of}");
    let started = |process: u32| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        status.lines().any(|line| line == parent).then_some(process)
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers = names.filter_map(|name| name.parse().ok());
    numbers.filter_map(started).collect()
}

#[test]
fn all_ranks_stop_where_one_is_asked_to() {
    let workspace = Workspace::new();
    let [first, other] = endless(&workspace);
    signal(&other, "-TERM");
    for child in [first, other] {
        let told = outcome(child);
        let words = "interrupted; the same command goes on from here";
        assert!(
            told.code == Some(130) && told.stderr.contains(words),
            "{told:#?}"
        );
        assert!(!told.stderr.contains("has ended"), "{told:#?}");
    }
}

#[test]
fn ranks_of_other_recipes_and_wrong_numbers_are_refused() {
    let workspace = Workspace::new();
    let port = free_port();
    let first = rank(&workspace, 0, port, SETTINGS);
    let foreign = rank(&workspace, 1, port, &format!("{SETTINGS} --set seed=9"));
    outcome(foreign).failed(&["rank 0 refuses rank 1", "are not those of rank 0"]);
    let other = rank(&workspace, 1, port, SETTINGS);
    let told = outcome(first).succeeded();
    assert!(told.stderr.contains("is no rank of this run"), "{told:#?}");
    outcome(other).succeeded();

    let odd = "recipe recipe.toml --set train.gradient_accumulation=3 --devices cpu,cpu";
    let told = [
        "`[train] gradient_accumulation`",
        "a multiple of the 2 ranks",
        "found 3",
    ];
    workspace.run_line(odd).misused(&told);
    // A plan is of as many ranks as would run, and waits for none.
    let plan = "recipe recipe.toml --plan --set train.gradient_accumulation=";
    outcome(rank(&workspace, 0, port, &format!("{plan}3"))).misused(&told);
    let planned = outcome(rank(&workspace, 0, port, &format!("{plan}2"))).succeeded();
    // Long lines are wrapped.
    let words: Vec<&str> = planned.stdout.split_whitespace().collect();
    let told = words.join(" ");
    assert!(told.contains("of each of 2 processes"), "{planned:#?}");
    workspace
        .run_line("recipe recipe.toml --devices cpu,gpu")
        .misused(&["cuda:N"]);
    let mut command = workspace.command(&["recipe", "recipe.toml"]);
    command.env("WORLD_SIZE", "2");
    Outcome::from(command.output().unwrap()).misused(&["no `RANK`"]);
}
