//! Datasets to train on that are known by name: where they are on the hub, and how their rows become conversations.
//!
//! Nothing of the data is in this repository. The datasets and their columns are those that SpecForge
//! (`scripts/prepare_data.py`) and speculators (`data_generation/configs.py`) train drafters on.

use std::fmt;

use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::near::did_you_mean;

use crate::conversation::parse::object;
use crate::conversation::{Conversation, LABELS, Message, Row};
use crate::hub_data::HubAddress;
use crate::json::{check, items, kind};
use crate::prompts::ask::{Ask, Fields};
use crate::roles::SPEAKERS;
use crate::table::{Columns, Named};

/// A dataset that is known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// By which it is asked for.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Its dataset, configuration and split.
    pub address: &'static str,
    /// How its rows become conversations.
    pub conversion: Conversion,
    /// The licence that its card names.
    pub licence: &'static str,
}

/// How rows become conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// They are conversations in one of the forms that are read anyhow.
    None,
    /// The list in `conversations` has speakers of many names. Answers before the first question are left off, and so are
    /// rows without a question and an answer, or with a speaker that is neither.
    Speakers,
    /// What the user says, with columns in it as `{column}`, and the column with the answer. Rows where one of them is empty
    /// are left out.
    Pair {
        /// What the user says.
        user: &'static str,
        /// What the assistant says.
        assistant: &'static str,
    },
}

/// All of them.
pub const PRESETS: [Preset; 9] = [
    Preset {
        name: "ultrachat",
        about: "208,000 conversations of several turns, the filtered part of UltraChat",
        address: "hf://HuggingFaceH4/ultrachat_200k:default/train_sft",
        conversion: Conversion::None,
        licence: "MIT",
    },
    Preset {
        name: "sharegpt",
        about: "121,000 conversations that people had with ChatGPT and shared",
        address: "hf://Aeala/ShareGPT_Vicuna_unfiltered",
        conversion: Conversion::Speakers,
        licence: "Apache 2.0, as its card says of answers of ChatGPT",
    },
    Preset {
        name: "perfectblend",
        about: "1.4 million conversations: chat, mathematics, code, instructions",
        address: "hf://mlabonne/open-perfectblend",
        conversion: Conversion::Speakers,
        licence: "Apache 2.0",
    },
    Preset {
        name: "magpie",
        about: "a million questions that Qwen2.5-72B-Instruct made up and answered",
        address: "hf://Magpie-Align/Magpie-Qwen2.5-Pro-1M-v0.1",
        conversion: Conversion::Speakers,
        licence: "none among its tags; its card refers to that of Qwen",
    },
    Preset {
        name: "opc",
        about: "2.5 million programming tasks of OpenCoder, the part `largescale_diverse_instruct`",
        address: "hf://OpenCoder-LLM/opc-sft-stage1:largescale_diverse_instruct/train",
        conversion: pair("{instruction}", "{output}"),
        licence: "MIT",
    },
    Preset {
        name: "opencodeinstruct",
        about: "5 million programming tasks with answers of Qwen2.5-Coder-32B-Instruct",
        address: "hf://nvidia/OpenCodeInstruct",
        conversion: pair("{input}", "{output}"),
        licence: "CC BY 4.0",
    },
    Preset {
        name: "magicoder",
        about: "110,000 programming tasks, Evol-Instruct without those of HumanEval",
        address: "hf://ise-uiuc/Magicoder-Evol-Instruct-110K",
        conversion: pair("{instruction}", "{response}"),
        licence: "Apache 2.0",
    },
    Preset {
        name: "codealpaca",
        about: "20,000 short programming tasks",
        address: "hf://sahil2801/CodeAlpaca-20k",
        conversion: pair("{instruction}\n\n{input}", "{output}"),
        licence: "CC BY 4.0 by its card, CC BY-NC 4.0 by its repository",
    },
    Preset {
        name: "gsm8k",
        about: "7473 school problems in words, the train split",
        address: "hf://openai/gsm8k:main/train",
        conversion: pair("{question}", "{answer}"),
        licence: "MIT",
    },
];

const fn pair(user: &'static str, assistant: &'static str) -> Conversion {
    Conversion::Pair { user, assistant }
}

impl Preset {
    /// The preset of this name.
    ///
    /// # Errors
    /// There is none: the message names those there are.
    pub fn find(name: &str) -> Result<&'static Self, String> {
        let found = PRESETS.iter().find(|preset| preset.name == name);
        found.ok_or_else(|| {
            let names = PRESETS
                .map(|preset| format!("`{}`", preset.name))
                .join(", ");
            let near = did_you_mean(name, PRESETS.iter().map(|preset| preset.name));
            format!("expected one of the presets {names}, found `{name}`{near}")
        })
    }

    /// Where it is on the hub.
    pub fn address(&self) -> HubAddress {
        match HubAddress::parse(self.address) {
            Some(Ok(address)) => address,
            // A test reads all of them.
            _ => unreachable!("`{}` is an address", self.address),
        }
    }
}

impl fmt::Display for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("`messages`"),
            Self::Speakers => f.write_str("`conversations`, by their speakers"),
            Self::Pair { user, assistant } => {
                let user = user.replace('\n', " ");
                write!(
                    f,
                    "`{}`, answer `{assistant}`",
                    user.split_whitespace().collect::<Vec<_>>().join(" ")
                )
            }
        }
    }
}

fn asks(text: &str) -> Fields {
    Fields {
        ask: Ask::Text(text.to_string()),
        ..Fields::default()
    }
}

impl Conversion {
    /// The columns of a table that a row is made from.
    pub(crate) fn columns(&self) -> Columns {
        let named = |all: Vec<String>| {
            Columns::Named(Named {
                all,
                one: Vec::new(),
                more: LABELS.map(str::to_owned).to_vec(),
            })
        };
        match self {
            Self::None => Columns::Needed,
            Self::Speakers => named(vec!["conversations".to_string()]),
            Self::Pair { user, assistant } => asks(&format!("{user}{assistant}")).columns(),
        }
    }

    /// The row that a line or a row of a table is; `None` for one that holds no question with an answer.
    ///
    /// # Errors
    /// It has not the columns that were expected.
    pub(crate) fn row(&self, text: &str) -> Result<Option<Row>, Mismatch> {
        if *self == Self::None {
            return Row::from_json(text).map(Some);
        }
        let text = text.trim();
        check(text).map_err(|error| Mismatch::new("one JSON object", error.to_string()))?;
        if !text.starts_with('{') {
            return Err(Mismatch::new("an object", kind(text)));
        }
        let values = object(text, "a row")?;
        let said = match self {
            Self::None => None,
            Self::Speakers => {
                let given = values.iter().find(|(key, _)| key == "conversations");
                let given = given.map(|(_, value)| *value);
                speakers(given.ok_or_else(|| {
                    Mismatch::new("a column `conversations`", crate::json::keys(&values))
                })?)?
            }
            Self::Pair { user, assistant } => {
                let said = |text: &str| asks(text).said(&values);
                let (user, assistant) = (said(user)?, said(assistant)?);
                let is_whole = !user.is_empty() && !assistant.is_empty();
                is_whole.then(|| {
                    vec![
                        Message::new("user", user),
                        Message::new("assistant", assistant),
                    ]
                })
            }
        };
        Ok(said.map(|messages| Conversation::new(messages).into()))
    }
}

/// The messages of a list of speakers; `None` where there is no question with an answer behind it.
fn speakers(list: &str) -> Result<Option<Vec<Message>>, Mismatch> {
    if list == "null" {
        return Ok(None);
    }
    if !list.starts_with('[') {
        return Err(Mismatch::new("`conversations` to be a list", kind(list)));
    }
    let mut messages: Vec<Message> = Vec::new();
    for item in items(list) {
        let fields = if item.starts_with('{') {
            object(item, "a message")?
        } else {
            Vec::new()
        };
        let text = |keys: [&str; 2]| -> Option<String> {
            let found = fields
                .iter()
                .find(|(key, value)| keys.contains(&key.as_ref()) && *value != "null");
            serde_json::from_str(found?.1).ok()
        };
        let speaker = text(["from", "role"]).unwrap_or_default();
        let role = SPEAKERS.iter().find(|(known, _)| *known == speaker);
        let (Some((_, role)), Some(content)) = (role, text(["value", "content"])) else {
            return Ok(None);
        };
        let has_question = messages.iter().any(|message| message.role == "user");
        if *role == "assistant" && !has_question {
            continue;
        }
        messages.push(Message::new(*role, content));
    }
    let is_answered = messages
        .iter()
        .any(|message| message.is_assistant() && !message.content.trim().is_empty());
    Ok(is_answered.then_some(messages))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::conversation::Content;

    /// A row with the columns of a preset's dataset, as its card shows them.
    fn row_of(name: &str) -> Value {
        match name {
            "ultrachat" => json!({"prompt": "a", "prompt_id": "1", "messages": [
                {"content": "a", "role": "user"}, {"content": "b", "role": "assistant"}]}),
            "sharegpt" | "perfectblend" | "magpie" => {
                json!({"id": "1", "source": "x", "conversations": [
                {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})
            }
            "opc" => json!({"instruction": "a", "output": "b", "tag": "t"}),
            "opencodeinstruct" => {
                json!({"id": "1", "input": "a", "output": "b", "unit_tests": "[]"})
            }
            "magicoder" => json!({"instruction": "a", "response": "b"}),
            "codealpaca" => json!({"instruction": "a", "input": "", "output": "b"}),
            "gsm8k" => json!({"question": "a", "answer": "b"}),
            other => panic!("the preset `{other}` has no row here"),
        }
    }

    fn said(conversion: Conversion, row: &Value) -> Option<Vec<(String, String)>> {
        let row = conversion.row(&row.to_string()).unwrap()?;
        let Content::Conversation(conversation) = row.content else {
            panic!("tokens");
        };
        let messages = conversation.messages.into_iter();
        Some(
            messages
                .map(|message| (message.role, message.content))
                .collect(),
        )
    }

    fn pairs(pairs: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
        let own = |(role, content): &(&str, &str)| ((*role).to_string(), (*content).to_string());
        Some(pairs.iter().map(own).collect())
    }

    #[test]
    fn every_preset_has_an_address_and_reads_rows_of_its_dataset() {
        for preset in PRESETS {
            assert_eq!(preset.address().to_string(), preset.address);
            assert_eq!(
                Preset::find(preset.name),
                Ok(&PRESETS[PRESETS.iter().position(|p| p == &preset).unwrap()])
            );
            let found = said(preset.conversion, &row_of(preset.name));
            assert_eq!(
                found,
                pairs(&[("user", "a"), ("assistant", "b")]),
                "{}",
                preset.name
            );
        }
        let error = Preset::find("sharegtp").unwrap_err();
        assert!(error.ends_with("; did you mean `sharegpt`?"), "{error}");
        assert!(
            error.contains("`sharegpt`") && error.contains("found `sharegtp`"),
            "{error}"
        );
    }

    #[test]
    fn speakers_of_any_name_have_roles_and_what_is_no_conversation_is_left_out() {
        let of = |list: Value| said(Conversion::Speakers, &json!({"conversations": list}));
        let say = |who: &str, what: &str| json!({"from": who, "value": what});
        assert_eq!(
            of(json!([
                say("gpt", "left off"),
                say("system", "s"),
                say("human", "a"),
                say("bing", "b")
            ])),
            pairs(&[("system", "s"), ("user", "a"), ("assistant", "b")])
        );
        for list in [
            json!([]),
            json!(null),
            json!([say("gpt", "b")]),
            json!([say("human", "a")]),
            json!([say("human", "a"), say("gpt", " ")]),
            json!([say("human", "a"), say("tool", "b"), say("gpt", "c")]),
            json!([say("human", "a"), {"from": "gpt", "value": null}]),
        ] {
            assert_eq!(of(list.clone()), None, "{list}");
        }
    }

    #[test]
    fn columns_are_put_together_and_a_missing_one_is_named() {
        let codealpaca = Preset::find("codealpaca").unwrap().conversion;
        let row = json!({"instruction": "sort", "input": "3 1", "output": "1 3"});
        assert_eq!(
            said(codealpaca, &row),
            pairs(&[("user", "sort\n\n3 1"), ("assistant", "1 3")])
        );
        assert_eq!(
            said(
                codealpaca,
                &json!({"instruction": "sort", "input": "", "output": " "})
            ),
            None
        );
        let error = codealpaca
            .row(r#"{"instruction": "sort", "output": "x"}"#)
            .unwrap_err();
        assert!(error.to_string().contains("a column `input`"), "{error}");
        let error = Conversion::Speakers.row(r#"{"messages": []}"#).unwrap_err();
        assert!(error.to_string().contains("`conversations`"), "{error}");
    }
}
