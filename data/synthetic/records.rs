//! Records, tables and small programs.

use super::dice::{Dice, Exchange};
use super::words::{ADJECTIVES, ANIMALS, FOODS, NAMES, OBJECTS, TRADES, listed, with_article};

/// A sentence as a JSON record.
pub(super) fn json(dice: &mut Dice) -> Exchange {
    let (name, trade, adjective) = (dice.pick(NAMES), dice.pick(TRADES), dice.pick(ADJECTIVES));
    let town = dice.pick(&[
        "Oakwell", "Linden", "Redwater", "Fairholm", "Westmere", "Thornby", "Brackley", "Greyport",
    ]);
    let age = dice.number(18, 90);
    let owned = dice.pick_many(OBJECTS, 2);
    let member = dice.one_in(2);
    let club = if member {
        "is a member of the club"
    } else {
        "is not a member of the club"
    };
    let ask = dice.pick(&[
        "Write this as JSON",
        "Turn this into a JSON record",
        "Extract a JSON object",
    ]);
    let prompt = format!(
        "{ask}: {name}, aged {age}, is {} from {town}, owns {} and {}, and {club}.",
        with_article(&format!("{adjective} {trade}")),
        with_article(owned[0]),
        with_article(owned[1]),
    );
    let answer = format!(
        "{}\n{{\n  \"name\": \"{name}\",\n  \"age\": {age},\n  \"trade\": \"{trade}\",\n  \"character\": \"{adjective}\",\n  \
         \"town\": \"{town}\",\n  \"owns\": [\"{}\", \"{}\"],\n  \"member\": {member}\n}}",
        dice.pick(&[
            "Here is the record:",
            "As JSON:",
            "The sentence gives this object:"
        ]),
        owned[0],
        owned[1],
    );
    let exchange = Exchange::new(prompt, answer);
    if dice.one_in(2) {
        return exchange;
    }
    let (animal, pet) = (dice.pick(ANIMALS), dice.pick(NAMES));
    exchange.then(
        format!("{name} also has {} called {pet}. Show only the field to add.", with_article(animal)),
        format!(
            "Add this field before the closing brace:\n  \"pet\": {{\"kind\": \"{animal}\", \"name\": \"{pet}\"}}\n\
             It holds a record of its own, because the {animal} has both a kind and a name."
        ),
    )
}

/// A table with a total.
pub(super) fn table(dice: &mut Dice) -> Exchange {
    let count = dice.number(3, 4) as usize;
    let foods = dice.pick_many(FOODS, count);
    let amounts = dice.numbers(count as u64, 1, 80);
    let (name, total) = (dice.pick(NAMES), amounts.iter().sum::<u64>());
    let stock: Vec<String> = foods
        .iter()
        .zip(&amounts)
        .map(|(food, amount)| format!("{amount} {food}"))
        .collect();
    let rows: String = foods
        .iter()
        .zip(&amounts)
        .map(|(food, amount)| format!("| {food} | {amount} |\n"))
        .collect();
    let most = (0..count)
        .max_by_key(|&row| (amounts[row], std::cmp::Reverse(row)))
        .unwrap_or(0);
    let ask = dice.pick(&[
        "Make a table of what",
        "Put in a table what",
        "Please list as a table what",
    ]);
    Exchange::new(
        format!("{ask} {name} has in store: {}.", stock.join(", ")),
        format!(
            "| item | amount |\n| --- | --- |\n{rows}| total | {total} |\n\n{name} has {total} items in all. \
             Of the {} there are the most, with {} in store.",
            foods[most], amounts[most],
        ),
    )
}

/// A short function with an example of its use.
pub(super) fn program(dice: &mut Dice) -> Exchange {
    let count = dice.number(3, 5);
    let values = dice.numbers(count, 1, 40);
    let (limit, noun) = (dice.number(5, 35), dice.pick(OBJECTS).replace(' ', "_"));
    let list = listed(&values);
    let (task, name, body, result) = function(dice, &values, limit);
    let ask = dice.pick(&[
        "Write a Python function that",
        "In Python, define a function that",
        "I need a Python function that",
    ]);
    let answer = format!(
        "```python\ndef {name}_{noun}(values):\n    return {body}\n\nprint({name}_{noun}([{list}]))\n```\n\
         The function {task}. For the list [{list}] it prints {result}."
    );
    let exchange = Exchange::new(
        format!("{ask} {task}. Call it {name}_{noun} and try it on [{list}]."),
        answer,
    );
    if dice.one_in(2) {
        return exchange;
    }
    exchange.then(
        format!("How do I test {name}_{noun} on [{list}]?"),
        format!(
            "Compare the result with the value you expect:\n```python\ndef test_{name}_{noun}():\n    \
             assert {name}_{noun}([{list}]) == {result}\n```\nIf the function is wrong, the assertion fails."
        ),
    )
}

/// What a function of numbers does, its name and body, and what it gives for these.
fn function(dice: &mut Dice, values: &[u64], limit: u64) -> (String, &'static str, String, String) {
    match dice.number(1, 5) {
        1 => {
            let result: u64 = values.iter().filter(|value| **value > limit).sum();
            (
                format!("adds up the values above {limit}"),
                "total",
                format!("sum(value for value in values if value > {limit})"),
                result.to_string(),
            )
        }
        2 => {
            let result = values.iter().filter(|value| **value <= limit).count();
            (
                format!("counts the values up to {limit}"),
                "count",
                format!("len([value for value in values if value <= {limit}])"),
                result.to_string(),
            )
        }
        3 => {
            let result: Vec<u64> = values.iter().map(|value| value * limit).collect();
            (
                format!("multiplies every value by {limit}"),
                "scale",
                format!("[value * {limit} for value in values]"),
                format!("[{}]", listed(&result)),
            )
        }
        4 => {
            let result: Vec<u64> = values
                .iter()
                .filter(|value| value.is_multiple_of(2))
                .copied()
                .collect();
            (
                "keeps the even values".to_owned(),
                "even",
                "[value for value in values if value % 2 == 0]".to_owned(),
                format!("[{}]", listed(&result)),
            )
        }
        _ => {
            let result = values.iter().max().unwrap_or(&0) - values.iter().min().unwrap_or(&0);
            (
                "gives the range of the values".to_owned(),
                "spread",
                "max(values) - min(values)".to_owned(),
                result.to_string(),
            )
        }
    }
}

/// What a loop prints.
pub(super) fn trace(dice: &mut Dice) -> Exchange {
    let variable = dice.pick(&["total", "number", "score", "steps", "level", "x"]);
    let (start, rounds, amount) = (dice.number(1, 60), dice.number(3, 5), dice.number(2, 40));
    let grows = dice.one_in(2);
    let change = if grows {
        format!("{variable} += {amount}")
    } else {
        format!("{variable} = {variable} * 2 - {amount}")
    };
    let mut value = start as i64;
    let mut lines = String::new();
    for round in 0..rounds {
        value = if grows {
            value + amount as i64
        } else {
            value * 2 - amount as i64
        };
        lines += &format!("- round {round}: {variable} = {value}\n");
    }
    let ask = dice.pick(&[
        "What does this program print?",
        "Trace this program.",
        "Which number is printed at the end?",
    ]);
    Exchange::new(
        format!(
            "{ask}\n{variable} = {start}\nfor round in range({rounds}):\n    {change}\nprint({variable})"
        ),
        format!(
            "The variable {variable} starts at {start}, and the loop runs {rounds} times:\n{lines}After the loop the program prints {value}.",
        ),
    )
}
