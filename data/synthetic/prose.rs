//! Stories, letters and other texts, whose turns are chance.

use super::dice::{Dice, Exchange};
use super::words::{
    ADJECTIVES, ANIMALS, CLOSINGS, DEEDS, DISCOVERIES, ENDINGS, FOODS, HOPES, NAMES, OBJECTS,
    OPENINGS, PLACES, TRADES, TURNS, WEATHERS, WEEKDAYS, capitalised, with_article,
};

/// A story about someone who finds something.
pub(super) fn story(dice: &mut Dice) -> Exchange {
    let (name, trade, place) = (dice.pick(NAMES), dice.pick(TRADES), dice.pick(PLACES));
    let (adjective, object, animal) = (
        dice.pick(ADJECTIVES),
        dice.pick(OBJECTS),
        dice.pick(ANIMALS),
    );
    let ask = dice.pick(&[
        "Tell me a short story about",
        "Write a small story with",
        "Make up a tale about",
    ]);
    let prompt = format!(
        "{ask} {name} the {trade}, {} and {}.",
        with_article(animal),
        with_article(&format!("{adjective} {object}"))
    );
    let opening = dice.pick(OPENINGS);
    let discovery = dice.pick(DISCOVERIES);
    let deed = dice.pick(DEEDS);
    let turn = dice.pick(TURNS);
    let end = dice.pick(ENDINGS);
    let answer = format!(
        "{opening}, when {}, {name} the {trade} walked to {place}. There {} {discovery}. {name} {deed}. \
         Just then {} came out of the {} grass and {turn}. \"Is this {object} yours?\" asked {name}. \
         The {animal} only {}. In the end {name} kept the {adjective} {object}, and {end}.",
        dice.pick(WEATHERS),
        with_article(&format!("{adjective} {object}")),
        with_article(animal),
        dice.pick(ADJECTIVES),
        dice.pick(&[
            "blinked",
            "nodded",
            "turned away",
            "sat down",
            "shook its head",
            "looked at the sky"
        ]),
    );
    let exchange = Exchange::new(prompt, answer);
    if dice.one_in(2) {
        return exchange;
    }
    let (friend, other) = (dice.pick(NAMES), dice.pick(PLACES));
    exchange.then(
        format!("What did {friend} say when {name} brought the {adjective} {object} to {other}?"),
        format!(
            "At {other} {friend} put down {} and said: \"I have seen that {object} before. It belonged to {}, who lost it when {}.\" \
             So {name} and {friend} set out together to give it back.",
            with_article(dice.pick(OBJECTS)), with_article(dice.pick(TRADES)), dice.pick(WEATHERS),
        ),
    )
}

/// A letter with thanks, an apology or an invitation.
pub(super) fn letter(dice: &mut Dice) -> Exchange {
    let people = dice.pick_many(NAMES, 2);
    let (writer, reader) = (people[0], people[1]);
    let hour = dice.number(8, 20);
    let (wish, body) = occasion(dice, reader, hour);
    let close = dice.pick(CLOSINGS);
    let hope = dice.pick(HOPES);
    let ask = dice.pick(&[
        "Write a short letter in which",
        "Help me with a note in which",
        "Draft a message in which",
    ]);
    Exchange::new(
        format!("{ask} {writer} wants to {wish}. Mention {hour} o'clock if it fits."),
        format!("Dear {reader},\n\n{body} {hope}\n\n{close},\n{writer}"),
    )
}

/// Why a letter is written, and what it says.
fn occasion(dice: &mut Dice, reader: &str, hour: u64) -> (String, String) {
    let (object, day, place) = (dice.pick(OBJECTS), dice.pick(WEEKDAYS), dice.pick(PLACES));
    match dice.number(1, 3) {
        1 => (
            format!("thank {reader} for the {object}"),
            format!(
                "thank you very much for the {object}. It arrived on {day} and it is {} than I had hoped. I have put it next to the {} {}, where everybody can see it.",
                dice.pick(&[
                    "more beautiful",
                    "larger",
                    "finer",
                    "lighter",
                    "more useful"
                ]),
                dice.pick(ADJECTIVES),
                dice.pick(OBJECTS)
            ),
        ),
        2 => (
            format!("say sorry to {reader} about the {object}"),
            format!(
                "I am sorry about your {object}. On {day} I took it to {place}, and there it {}. I will bring you a new one as soon as I can, and some {} as well.",
                dice.pick(&[
                    "fell into the water",
                    "broke in two",
                    "was left in the rain",
                    "rolled down the stairs",
                    "was lost"
                ]),
                dice.pick(FOODS)
            ),
        ),
        _ => (
            format!("invite {reader} to {place} on {day}"),
            format!(
                "would you like to come to {place} on {day} at {hour} o'clock? There will be {} and {}, and {} the {} will bring {}.",
                dice.pick(FOODS),
                dice.pick(FOODS),
                dice.pick(NAMES),
                dice.pick(TRADES),
                with_article(object)
            ),
        ),
    }
}

/// What a place looks like.
pub(super) fn place(dice: &mut Dice) -> Exchange {
    let (place, adjective, season) = (
        dice.pick(PLACES),
        dice.pick(ADJECTIVES),
        dice.pick(&["spring", "summer", "autumn", "winter"]),
    );
    let name = dice.pick(NAMES);
    let seen = dice.pick_many(OBJECTS, 3);
    let prompt = match dice.number(1, 3) {
        1 => format!(
            "Describe {place} in {season} for {name}, with {}.",
            with_article(&format!("{adjective} {}", seen[0]))
        ),
        2 => format!(
            "What would {name} see at {place} in {season}? Do not forget the {adjective} {}.",
            seen[0]
        ),
        _ => format!(
            "Paint a picture in words of {place} in {season}: {name}, something {adjective} and {}.",
            with_article(seen[0])
        ),
    };
    let people = dice.pick(&[
        "hardly anyone was about",
        "children ran from door to door",
        "two old friends played chess",
        "the shops were just opening",
        "a band was playing",
    ]);
    let sound = dice.pick(&[
        "bells",
        "running water",
        "voices from a window",
        "hammers",
        "a far-off train",
        "birds",
    ]);
    let answer = format!(
        "In {season} {place} is {} and {}. By the entrance stands {}, and behind it you can see {} and {}. On my last visit {}, and {people}. \
         {name} likes to sit there with some {} and listen to the sound of {sound}. {} {} passes by, as on every {}.",
        dice.pick(ADJECTIVES),
        dice.pick(ADJECTIVES),
        with_article(&format!("{adjective} {}", seen[0])),
        with_article(seen[1]),
        with_article(&format!("{} {}", dice.pick(ADJECTIVES), seen[2])),
        dice.pick(WEATHERS),
        dice.pick(FOODS),
        capitalised(&with_article(dice.pick(ADJECTIVES))),
        dice.pick(ANIMALS),
        dice.pick(WEEKDAYS),
    );
    Exchange::new(prompt, answer)
}

/// Numbered steps to a dish or a repair.
pub(super) fn instructions(dice: &mut Dice) -> Exchange {
    let name = dice.pick(NAMES);
    if dice.one_in(2) {
        let foods = dice.pick_many(FOODS, 3);
        let (minutes, guests) = (dice.number(2, 12) * 5, dice.number(2, 8));
        let dish = dice.pick(&["a soup", "a salad", "a pie", "a stew", "a spread"]);
        return Exchange::new(
            format!(
                "How do I make {dish} from {}, {} and {} for {guests} guests?",
                foods[0], foods[1], foods[2]
            ),
            format!(
                "1. Wash the {} and cut them into {} pieces.\n2. {} the {} for {minutes} minutes.\n3. Mix in the {}, a pinch of {} and {} spoons of oil.\n\
                 4. Let it rest until it is {}.\n5. Serve it to your {guests} guests with {}.",
                foods[0],
                dice.pick(ADJECTIVES),
                dice.pick(&["Boil", "Fry", "Bake", "Steam", "Roast"]),
                foods[1],
                foods[2],
                dice.pick(&["salt", "pepper", "sugar", "thyme", "ginger"]),
                dice.number(2, 6),
                dice.pick(&["cool", "firm", "golden", "soft", "thick"]),
                dice.pick(&["fresh bread", "rice", "a green salad", "tea", "cold milk"]),
            ),
        );
    }
    let (object, adjective, tool) = (
        dice.pick(OBJECTS),
        dice.pick(ADJECTIVES),
        dice.pick(OBJECTS),
    );
    let days = dice.number(2, 9);
    Exchange::new(
        format!(
            "How can {name} repair {} in {days} days?",
            with_article(&format!("{adjective} {object}"))
        ),
        format!(
            "1. Clean the {object} with {} water and let it dry.\n2. Look for the {} part and mark it with chalk.\n3. Use {} to {} it.\n\
             4. Put on {} coats of {} paint, one each morning.\n5. Wait for {days} days before {name} uses the {object} again.",
            dice.pick(&["warm", "cold", "soapy", "salt"]),
            dice.pick(&["loose", "bent", "cracked", "missing"]),
            with_article(tool),
            dice.pick(&["fix", "straighten", "tighten", "replace"]),
            dice.number(2, 4),
            dice.pick(&["white", "blue", "green", "black", "red"]),
        ),
    )
}

/// Which of two things to choose.
pub(super) fn comparison(dice: &mut Dice) -> Exchange {
    let things = dice.pick_many(OBJECTS, 2);
    let looks = dice.pick_many(ADJECTIVES, 4);
    let (first, second) = (
        format!("{} {}", looks[0], things[0]),
        format!("{} {}", looks[1], things[1]),
    );
    let (trade, price, other) = (dice.pick(TRADES), dice.number(5, 90), dice.number(5, 90));
    let prompt = format!(
        "Should {} buy {} for {price} coins or {} for {other} coins?",
        with_article(trade),
        with_article(&first),
        with_article(&second),
    );
    let (cheaper, gap) = if price <= other {
        (things[0], other - price)
    } else {
        (things[1], price - other)
    };
    let saving = if gap == 0 {
        "Both cost the same.".to_owned()
    } else {
        format!("The {cheaper} is cheaper by {gap} coins.")
    };
    let chosen = dice.pick(&things);
    let answer = format!(
        "It depends on the work. {} is easy to {}, while {} will {}. {saving} For the daily work of {} I would choose the {chosen}, \
         because it is {} and {}. A wise {trade} also asks {} before paying.",
        capitalised(&with_article(&first)),
        dice.pick(&["carry", "store", "sell again", "clean", "repair"]),
        with_article(&second),
        dice.pick(&[
            "last for years",
            "please the guests",
            "need some care",
            "be hard to replace",
            "take up much room"
        ]),
        with_article(trade),
        looks[2],
        looks[3],
        dice.pick(&[
            "a friend",
            "an old hand",
            "the seller twice",
            "at home",
            "around the market"
        ]),
    );
    Exchange::new(prompt, answer)
}

/// A talk between two people.
pub(super) fn dialogue(dice: &mut Dice) -> Exchange {
    let people = dice.pick_many(NAMES, 2);
    let (first, second) = (people[0], people[1]);
    let (object, place, day) = (dice.pick(OBJECTS), dice.pick(PLACES), dice.pick(WEEKDAYS));
    let looks = dice.pick_many(ADJECTIVES, 3);
    let ask = dice.pick(&[
        "Write a dialogue between",
        "Let us hear a talk between",
        "Invent a conversation of",
    ]);
    let answer = format!(
        "{first}: Have you seen my {object}? I left it at {place} on {day}.\n{second}: {} Was it the {} one?\n\
         {first}: No, it was {} and rather {}. {}\n{second}: Then {} the {} may have it. I saw {} with one when {}.\n{first}: {}",
        dice.pick(&[
            "I am not sure.",
            "Perhaps.",
            "Let me think.",
            "Not since last week."
        ]),
        looks[0],
        looks[1],
        looks[2],
        dice.pick(&[
            "My uncle made it.",
            "I need it for work.",
            "It cost a lot.",
            "I would know it anywhere."
        ]),
        dice.pick(NAMES),
        dice.pick(TRADES),
        dice.pick(&["someone", "a stranger", "a tall person", "a child"]),
        dice.pick(WEATHERS),
        dice.pick(&[
            "Thank you, I will ask at once.",
            "That would be a surprise!",
            "Let us go there together.",
            "I should have known."
        ]),
    );
    Exchange::new(
        format!("{ask} {first} and {second} about a lost {object} at {place} on {day}."),
        answer,
    )
}
