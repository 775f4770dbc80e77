//! Questions about lists, letters and dates.

use super::dice::{Dice, Exchange};
use super::words::{ANIMALS, MONTHS, NAMES, OBJECTS, WEEKDAYS, capitalised, listed, with_article};

/// Sorting by insertion.
pub(super) fn sort(dice: &mut Dice) -> Exchange {
    if dice.one_in(3) {
        return sort_words(dice);
    }
    let count = dice.number(4, 6);
    let numbers = dice.numbers(count, 1, 99);
    let prompt = match dice.number(1, 3) {
        1 => format!("Sort these numbers: {}.", listed(&numbers)),
        2 => format!("Put {} in ascending order, step by step.", listed(&numbers)),
        _ => format!("Show how insertion sort handles [{}].", listed(&numbers)),
    };
    let mut sorted: Vec<u64> = Vec::new();
    let mut answer = String::from("Take the numbers one at a time and insert each in its place.\n");
    for number in &numbers {
        let place = sorted.partition_point(|other| other <= number);
        sorted.insert(place, *number);
        answer += &format!("- insert {number}: [{}]\n", listed(&sorted));
    }
    answer += &format!("The sorted list is [{}].", listed(&sorted));
    let exchange = Exchange::new(prompt, answer);
    if dice.one_in(2) {
        return exchange;
    }
    let extra = dice.number(100, 999);
    exchange.then(
        format!("Where does {extra} go in [{}]?", listed(&sorted)),
        format!(
            "The number {extra} is larger than all of [{}], so it goes to the end: [{}, {extra}].",
            listed(&sorted),
            listed(&sorted)
        ),
    )
}

fn sort_words(dice: &mut Dice) -> Exchange {
    let count = dice.number(4, 6) as usize;
    let words = dice.pick_many(OBJECTS, count);
    let mut sorted = words.clone();
    sorted.sort_unstable();
    let answer = format!(
        "Compare the words letter by letter. The first in the alphabet is \"{}\", and the last is \"{}\". \
         In order the {count} words are: {}.",
        sorted[0],
        sorted[count - 1],
        listed(&sorted),
    );
    let order = dice.pick(&[
        "Sort these words by the alphabet",
        "Put these words in alphabetical order",
        "Arrange from A to Z",
    ]);
    Exchange::new(format!("{order}: {}.", listed(&words)), answer)
}

/// A list or a word backwards.
pub(super) fn reverse(dice: &mut Dice) -> Exchange {
    if dice.one_in(2) {
        let words = [dice.pick(OBJECTS), dice.pick(ANIMALS), dice.pick(NAMES)];
        let joined = words.join(" ").to_lowercase();
        let letters: Vec<char> = joined.chars().filter(|letter| *letter != ' ').collect();
        let backwards: Vec<char> = letters.iter().rev().copied().collect();
        let answer = format!(
            "Without the spaces there are {} letters: {}. Read from the end to the start they are {}. \
             Written as one word that is {}.",
            letters.len(),
            listed(&letters),
            listed(&backwards),
            backwards.iter().collect::<String>(),
        );
        return Exchange::new(
            format!("Spell \"{joined}\" backwards, without spaces."),
            answer,
        );
    }
    let count = dice.number(5, 8);
    let numbers = dice.numbers(count, 1, 99);
    let mut backwards = numbers.clone();
    backwards.reverse();
    let answer = format!(
        "The list has {count} items. The last item, {}, becomes the first, and the first, {}, becomes the last. \
         Going through it from the end gives [{}].",
        backwards[0],
        numbers[0],
        listed(&backwards),
    );
    let ask = dice.pick(&[
        "Reverse this list",
        "Turn this list around",
        "Write this list from back to front",
    ]);
    Exchange::new(format!("{ask}: [{}]", listed(&numbers)), answer)
}

/// How often something is in a list.
pub(super) fn count(dice: &mut Dice) -> Exchange {
    let kinds = dice.pick_many(ANIMALS, 3);
    let length = dice.number(6, 10);
    let animals: Vec<&str> = (0..length).map(|_| dice.pick(&kinds)).collect();
    let times = |kind: &str| animals.iter().filter(|animal| **animal == kind).count();
    let wanted = dice.pick(&kinds);
    let places: Vec<usize> = (1..)
        .zip(&animals)
        .filter(|(_, animal)| **animal == wanted)
        .map(|(place, _)| place)
        .collect();
    let found = match places.len() {
        0 => format!("The word \"{wanted}\" is not in the list at all, so the count is 0."),
        1 => format!(
            "The word \"{wanted}\" is in place {} only, so the count is 1.",
            places[0]
        ),
        many => format!(
            "The word \"{wanted}\" is in places {}, so the count is {many}.",
            listed(&places)
        ),
    };
    let others: Vec<String> = kinds
        .iter()
        .filter(|kind| **kind != wanted)
        .map(|kind| format!("{kind}: {}", times(kind)))
        .collect();
    let prompt = match dice.number(1, 3) {
        1 => format!(
            "How often is \"{wanted}\" in this list: {}?",
            listed(&animals)
        ),
        2 => format!("Count the word \"{wanted}\": {}.", listed(&animals)),
        _ => format!(
            "{} saw these animals in a row: {}. How many times was it {}?",
            dice.pick(NAMES),
            listed(&animals),
            with_article(wanted)
        ),
    };
    Exchange::new(
        prompt,
        format!(
            "The list has {length} items. {found} For the others I count {}.",
            others.join(", ")
        ),
    )
}

/// A weekday some days after another.
pub(super) fn weekday(dice: &mut Dice) -> Exchange {
    let (month, length) = MONTHS[dice.number(0, 11) as usize];
    let (day, start, later) = (
        dice.number(1, length),
        dice.number(0, 6) as usize,
        dice.number(8, 60),
    );
    let (name, object) = (dice.pick(NAMES), dice.pick(OBJECTS));
    let (weekday, rest) = (WEEKDAYS[start], later % 7);
    let result = WEEKDAYS[(start + later as usize) % 7];
    let date = format!("{weekday}, {day} {month}");
    let prompt = match dice.number(1, 3) {
        1 => format!("Today is {date}. Which weekday is it in {later} days?"),
        2 => format!(
            "{name} ordered {} on {date}, and it comes {later} days later. On which weekday does it come?",
            with_article(object)
        ),
        _ => format!("If it is {date}, what day of the week will it be after {later} days?"),
    };
    let step = match rest {
        0 => format!("Nothing is left over, so the weekday stays {result}."),
        1 => format!("One day is left over, and the day after {weekday} is {result}."),
        _ => {
            let passed: Vec<&str> = (1..=rest as usize)
                .map(|ahead| WEEKDAYS[(start + ahead) % 7])
                .collect();
            format!(
                "That leaves {rest} days. From {weekday} we count {}.",
                listed(&passed)
            )
        }
    };
    let answer = format!(
        "Weekdays repeat every 7 days. {later} days are {} weeks, which is {} days. {step} {} it will be {result}.",
        later / 7,
        later / 7 * 7,
        capitalised(dice.pick(&["so", "therefore", "this means"])),
    );
    let exchange = Exchange::new(prompt, answer);
    if dice.one_in(2) {
        return exchange;
    }
    exchange.then(
        format!("How many days are left in {month} after the {day}, if the year is not a leap year?"),
        format!("In a year that is not a leap year {month} has {length} days. After the {day} there are {length} - {day} = {} days left.", length - day),
    )
}
