use super::*;
use crate::counts::Counts;
use crate::speculate::Generation;

fn pass(accepted: usize) -> PassRecord {
    PassRecord {
        drafted: 3,
        depth: 3,
        tested: 3.min(accepted + 1),
        accepted,
        emitted: accepted + 1,
        ..PassRecord::default()
    }
}

fn answer(conversation: usize, turn: usize, prompt: usize, accepted: &[usize]) -> Answer {
    let passes: Vec<PassRecord> = accepted.iter().map(|&accepted| pass(accepted)).collect();
    let emitted: usize = passes.iter().map(|pass| pass.emitted).sum();
    Answer {
        conversation,
        turn,
        prompt: vec![0; prompt],
        generation: Generation {
            tokens: vec![0; 1 + emitted],
            passes,
            ..Generation::default()
        },
    }
}

fn prompt(category: Option<&str>, language: Option<&str>) -> Prompt {
    Prompt {
        category: category.map(str::to_owned),
        language: language.map(str::to_owned),
        ..Prompt::default()
    }
}

fn sets() -> (Vec<PromptSet>, Vec<Vec<Answer>>) {
    let set = |name: &str, prompts| PromptSet {
        name: name.to_owned(),
        prompts,
    };
    let sets = vec![
        set(
            "one",
            vec![
                prompt(Some("math"), None),
                prompt(Some("code | text"), Some("de")),
                prompt(Some("math"), None),
            ],
        ),
        set("two", vec![prompt(None, None)]),
    ];
    let answers = vec![
        vec![
            answer(0, 0, 10, &[3; 20]),
            answer(0, 1, 100, &[0, 1, 2]),
            answer(1, 0, 33, &[1; 200]),
            answer(2, 0, 64, &[]),
        ],
        vec![answer(0, 0, 65, &[2, 2])],
    ];
    (sets, answers)
}

fn named(groups: &[GroupReport]) -> Vec<(&str, u64, u64, u64)> {
    let all = groups.iter();
    all.map(|group| {
        (
            group.name.as_str(),
            group.prompts,
            group.passes,
            group.tokens,
        )
    })
    .collect()
}

#[test]
fn prompts_are_grouped_by_their_labels_lengths_and_turns() {
    let (sets, answers) = sets();
    let found = groups(&sets, &answers, None, 1);
    let columns: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(
        columns,
        ["category", "language", "position", "prompt_length", "turn"]
    );
    assert_eq!(
        named(&found["category"]),
        [
            ("math", 3, 23, 86),
            ("code | text", 1, 200, 400),
            ("none", 1, 2, 6)
        ]
    );
    assert_eq!(
        named(&found["language"]),
        [("none", 4, 25, 92), ("de", 1, 200, 400)]
    );
    assert_eq!(
        named(&found["prompt_length"]),
        [
            ("1–32", 1, 20, 80),
            ("33–64", 2, 200, 400),
            ("65–128", 2, 5, 12)
        ]
    );
    assert_eq!(named(&found["turn"]), [("1", 4, 222, 486), ("2", 1, 3, 6)]);
    let math = &found["category"][0];
    assert_eq!(math.tau, Some(86.0 / 23.0));
    // Of 60 + 3 accepted steps 60 + (1 + 2 + 3) were judged.
    assert_eq!(math.alpha, Some(63.0 / 66.0));
    // The conversation without passes is one of the two that are drawn.
    assert_eq!(math.tau_ci95, Some([86.0 / 23.0; 2]));
}

#[test]
fn passes_are_grouped_by_where_they_begin() {
    let (sets, answers) = sets();
    let found = groups(&sets, &answers, None, 1);
    // Passes of 4 tokens begin at the 2nd, 6th, … token: the 16th of them at the 62nd, the 17th at the 66th. Passes of 2
    // tokens begin at the 2nd, 4th, …: 32 of them up to the 64th, 128 up to the 256th.
    assert_eq!(
        named(&found["position"]),
        [
            ("1–64", 4, 16 + 3 + 32 + 2, 64 + 6 + 64 + 6),
            ("65–256", 2, 4 + 96, 16 + 192),
            ("257–1024", 1, 72, 144),
        ]
    );
    assert_eq!(
        (place(0), place(63), place(64)),
        ("1–64".into(), "1–64".into(), "65–256".into())
    );
    assert_eq!(
        (place(4095), place(4096)),
        ("1025–4096".into(), "from 4097".into())
    );
}

#[test]
fn the_groups_of_each_column_add_up_to_the_whole() {
    let (sets, answers) = sets();
    let whole: Counts = (answers.iter().flatten())
        .map(|answer| answer.generation.counts())
        .sum();
    let thinking = Thinking { begins: 1, ends: 2 };
    for (column, groups) in groups(&sets, &answers, Some(thinking), 1) {
        let sum = |count: fn(&GroupReport) -> u64| groups.iter().map(count).sum::<u64>();
        assert_eq!(
            [sum(|group| group.tokens), sum(|group| group.passes)].map(|sum| sum as f64),
            [whole.tokens, whole.passes],
            "{column}"
        );
        if !["position", "part"].contains(&column.as_str()) {
            assert_eq!(sum(|group| group.prompts), 5, "{column}");
        }
    }
}

#[test]
fn what_is_thought_ends_with_its_token() {
    let thinking = Thinking { begins: 1, ends: 2 };
    let thought = |prompt: &[u32], output: &[u32]| {
        let answer = Answer {
            prompt: prompt.to_vec(),
            generation: Generation {
                tokens: output.to_vec(),
                ..Generation::default()
            },
            ..answer(0, 0, 0, &[])
        };
        thinking.thought(&answer)
    };
    assert_eq!(thought(&[9], &[1, 5, 5, 2, 7, 7]), 4);
    assert_eq!(thought(&[9, 1], &[5, 2, 7]), 2);
    // It is cut off.
    assert_eq!(thought(&[9, 1], &[5, 5, 7]), 3);
    assert_eq!(thought(&[9], &[1, 5, 7]), 3);
    // The template told it not to think.
    assert_eq!(thought(&[9, 1, 2], &[5, 5, 7]), 0);
    assert_eq!(thought(&[9], &[5, 5, 7]), 0);

    // Tokens 1 to 7 are thought; passes begin at the 2nd, 4th, 6th and 8th.
    let mut output = answer(0, 0, 1, &[1; 4]);
    output.generation.tokens = vec![1, 5, 5, 5, 5, 5, 2, 5, 5];
    let sets = [PromptSet {
        name: "a".into(),
        prompts: vec![Prompt::default()],
    }];
    let found = groups(&sets, &[vec![output]], Some(thinking), 1);
    assert_eq!(
        named(&found["part"]),
        [("thinking", 1, 3, 6), ("answer", 1, 1, 2)]
    );
}

#[test]
fn a_table_for_each_column_has_the_settings_side_by_side() {
    let (sets, answers) = sets();
    let found = groups(&sets, &answers, None, 1);
    let none = Groups::new();
    let text = tables(&[("T=0".into(), &found), ("T=1".into(), &none)]);
    let expected = "
| category | τ (prompts, tokens): T=0 | τ (prompts, tokens): T=1 |
|---|---|---|
| math | 3.74 [3.74, 3.74] (3, 86) | – |
| code \\| text | 2.00 (1, 400) | – |
| none | 3.00 (1, 6) | – |

| language |";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(tables(&[("T=0".into(), &none)]), "");
}
