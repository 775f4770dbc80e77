//! Questions of arithmetic, answered step by step.

use super::dice::{Dice, Exchange};
use super::words::{FOODS, NAMES, OBJECTS, listed, summed, with_article};

/// A product by parts.
pub(super) fn product(dice: &mut Dice) -> Exchange {
    let (left, right) = (dice.number(12, 999), dice.number(12, 99));
    let question = match dice.number(1, 4) {
        1 => format!("What is {left} times {right}?"),
        2 => format!("Multiply {left} by {right} and show the steps."),
        3 => format!("Please work out {left} * {right}."),
        _ => format!("I need the product of {left} and {right}. How do I get it?"),
    };
    let answer = multiply(dice, left, right);
    let exchange = Exchange::new(question, answer);
    if dice.one_in(2) {
        return exchange;
    }
    let (result, more) = (left * right, dice.number(10, 500));
    exchange.then(
        format!("Now add {more} to the {result}."),
        format!(
            "Starting from {result}, we add {more}: {result} + {more} = {}. The new result is {}.",
            result + more,
            result + more
        ),
    )
}

fn multiply(dice: &mut Dice, left: u64, right: u64) -> String {
    let (tens, ones) = (right / 10 * 10, right % 10);
    let (first, second, result) = (left * tens, left * ones, left * right);
    if ones == 0 {
        return format!(
            "First multiply {left} by {}, which gives {}. Then put a zero behind it, because {right} is ten times {}. \
             So {left} * {right} = {result}.",
            right / 10,
            left * (right / 10),
            right / 10,
        );
    }
    let opening = dice.pick(&[
        "Split the second number",
        "We take the second number apart",
        "Break it into tens and ones",
    ]);
    format!(
        "{opening}: {right} = {tens} + {ones}. Then {left} * {tens} = {first} and {left} * {ones} = {second}. \
         Add the parts: {first} + {second} = {result}. So {left} * {right} = {result}."
    )
}

/// The change after a purchase.
pub(super) fn shopping(dice: &mut Dice) -> Exchange {
    let (name, food, object) = (dice.pick(NAMES), dice.pick(FOODS), dice.pick(OBJECTS));
    let (count, price, other) = (dice.number(2, 12), dice.number(2, 9), dice.number(11, 60));
    let cost = count * price;
    let total = cost + other;
    let paid = total.div_ceil(50) * 50 + if dice.one_in(3) { 50 } else { 0 };
    let change = paid - total;
    let wish = dice.pick(&[
        "How much change is due?",
        "How many coins come back?",
        "What is the change?",
    ]);
    let prompt = format!(
        "{name} buys {count} {food} at {price} coins each and {} for {other} coins, and pays with {paid} coins. {wish}",
        with_article(object),
    );
    let end = dice.pick(&["gets back", "receives", "has"]);
    let answer = format!(
        "The {food} cost {count} * {price} = {cost} coins. Together with the {object} that is {cost} + {other} = {total} coins. \
         {name} pays {paid} coins, and {paid} - {total} = {change}. So {name} {end} {change} coins."
    );
    let exchange = Exchange::new(prompt, answer);
    if dice.one_in(2) {
        return exchange;
    }
    let (friend, purse) = (dice.pick(NAMES), other + 10 - dice.number(0, 20).min(other));
    let verdict = if purse >= other {
        format!(
            "and {purse} - {other} = {} coins are left. Yes, it is enough.",
            purse - other
        )
    } else {
        format!(
            "and {other} - {purse} = {} coins are missing. No, it is not enough.",
            other - purse
        )
    };
    exchange.then(
        format!("{friend} has {purse} coins. Is that enough for the {object} without the {food}?"),
        format!("The {object} alone costs {other} coins. {friend} has {purse} coins, {verdict}"),
    )
}

/// The mean of a list.
pub(super) fn mean(dice: &mut Dice) -> Exchange {
    let count = dice.number(3, 6);
    let mut numbers = dice.numbers(count, 2, 60);
    // The last number is raised until the mean is whole.
    while !numbers.iter().sum::<u64>().is_multiple_of(count) {
        let last = numbers.len() - 1;
        numbers[last] += 1;
    }
    let total: u64 = numbers.iter().sum();
    let (least, most) = (
        numbers.iter().min().unwrap_or(&0),
        numbers.iter().max().unwrap_or(&0),
    );
    let prompt = match dice.number(1, 3) {
        1 => format!("What is the mean of {}?", listed(&numbers)),
        2 => format!("Find the average of these numbers: {}.", listed(&numbers)),
        _ => format!("Give me the mean and the range of {}.", listed(&numbers)),
    };
    let answer = format!(
        "There are {count} numbers. Their sum is {} = {total}. Dividing by {count} gives {total} / {count} = {}. \
         The smallest is {least} and the largest is {most}, so the range is {}. The mean is {}.",
        summed(&numbers),
        total / count,
        most - least,
        total / count,
    );
    Exchange::new(prompt, answer)
}

/// Days, hours and minutes in minutes.
pub(super) fn duration(dice: &mut Dice) -> Exchange {
    let (name, days, hours, minutes) = (
        dice.pick(NAMES),
        dice.number(1, 9),
        dice.number(1, 23),
        dice.number(1, 59),
    );
    let plural =
        |count: u64, unit: &str| format!("{count} {unit}{}", if count == 1 { "" } else { "s" });
    let span = format!(
        "{}, {} and {}",
        plural(days, "day"),
        plural(hours, "hour"),
        plural(minutes, "minute")
    );
    let prompt = match dice.number(1, 3) {
        1 => format!("How many minutes are {span}?"),
        2 => format!("{name} was away for {span}. How many minutes is that?"),
        _ => format!("Convert {span} to minutes for {name}."),
    };
    let (all_hours, from_hours) = (days * 24 + hours, (days * 24 + hours) * 60);
    let answer = format!(
        "A day has 24 hours, so {} are {days} * 24 = {} hours. With {hours} more that makes {all_hours} hours. \
         An hour has 60 minutes: {all_hours} * 60 = {from_hours}. Adding {minutes} gives {} minutes.",
        plural(days, "day"),
        days * 24,
        from_hours + minutes,
    );
    Exchange::new(prompt, answer)
}

/// Euclid's algorithm.
pub(super) fn common_divisor(dice: &mut Dice) -> Exchange {
    let factor = dice.number(2, 24);
    let (first, second) = (factor * dice.number(5, 40), factor * dice.number(5, 40));
    let (first, second) = (first.max(second), first.min(second));
    let (mut large, mut small, mut steps) = (first, second, String::new());
    while small > 0 {
        steps += &format!(
            " {large} = {} * {small} + {}.",
            large / small,
            large % small
        );
        (large, small) = (small, large % small);
    }
    let prompt = match dice.number(1, 3) {
        1 => format!("What is the greatest common divisor of {first} and {second}?"),
        2 => format!(
            "Use division with remainder to find the greatest number that divides both {first} and {second}."
        ),
        _ => format!("Reduce the fraction {second}/{first}. Which number can I divide by?"),
    };
    let answer = format!(
        "Divide the larger number by the smaller one and go on with the remainder.{steps} \
         The remainder is now 0, so the greatest common divisor is {large}. Indeed {first} / {large} = {} and {second} / {large} = {}.",
        first / large,
        second / large,
    );
    Exchange::new(prompt, answer)
}

/// The next terms of a sequence.
pub(super) fn sequence(dice: &mut Dice) -> Exchange {
    let (start, step) = (dice.number(1, 90), dice.number(2, 35));
    let terms: Vec<u64> = (0..8).map(|place| start + place * step).collect();
    let known = dice.number(3, 5) as usize;
    let shown = listed(&terms[..known]);
    let next = &terms[known..known + 3];
    let prompt = match dice.number(1, 3) {
        1 => format!("How does this sequence go on: {shown}?"),
        2 => format!("Give the next three terms of {shown}."),
        _ => format!("What is the rule of the sequence {shown}, and what comes next?"),
    };
    let last = terms[known - 1];
    let answer = format!(
        "Look at the differences: {} - {start} = {step} and {} - {} = {step}. Every term is the one before plus {step}. \
         So {last} + {step} = {}, {} + {step} = {} and {} + {step} = {}. The sequence goes on with {}.",
        terms[1],
        terms[2],
        terms[1],
        next[0],
        next[0],
        next[1],
        next[1],
        next[2],
        listed(next),
    );
    let exchange = Exchange::new(prompt, answer);
    if dice.one_in(2) {
        return exchange;
    }
    let place = dice.number(10, 40);
    exchange.then(
        format!("And which number is in place {place} of the sequence that starts with {start} and goes up by {step}?"),
        format!(
            "The first number is {start}, and to reach place {place} we take {} steps of {step}. That is {} * {step} = {}. \
             So place {place} holds {start} + {} = {}.",
            place - 1, place - 1, (place - 1) * step, (place - 1) * step, start + (place - 1) * step,
        ),
    )
}
