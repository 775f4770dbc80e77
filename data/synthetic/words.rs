//! The words that chance chooses from, and how they are joined.

pub(super) const NAMES: &[&str] = &[
    "Nora", "Tomas", "Ada", "Piet", "Lucia", "Omar", "Freya", "Hugo", "Mina", "Jonas", "Clara", "Ravi", "Elsa", "Bruno",
    "Yara", "Felix", "Ines", "Karl", "Maya", "Stefan", "Rosa", "Idris", "Vera", "Anton", "Leila", "Oskar", "Tilda", "Marco",
    "Greta", "Samir", "Paula", "Viktor", "Hanna", "Diego", "Alma", "Boris", "Cora", "Emil", "Fatima", "Gustav",
];
pub(super) const PLACES: &[&str] = &[
    "Oakwell", "Harbour Street", "Linden", "the old mill", "Redwater", "the market square", "Stonebridge", "Fairholm",
    "the lighthouse", "Westmere", "Thornby", "the river bank", "Kestrel Hill", "Brackley", "the train station", "Pinehurst",
    "the village school", "Marlow Bay", "the botanical garden", "Greyport", "the north gate", "Silverton", "the library",
    "Eastfield", "the glass house", "Carraway", "the boat yard", "Highmoor", "the bakery", "Saltmarsh",
];
pub(super) const OBJECTS: &[&str] = &[
    "lantern", "basket", "compass", "kettle", "violin", "ladder", "notebook", "umbrella", "mirror", "hammer", "candle",
    "blanket", "telescope", "bicycle", "teapot", "ring", "map", "clock", "bucket", "whistle", "suitcase", "key", "button",
    "drum", "envelope", "feather", "guitar", "iron pot", "jar", "kite", "lamp", "needle", "oar", "pencil", "quilt", "rope",
    "saddle", "trumpet", "vase", "wheel",
];
pub(super) const ADJECTIVES: &[&str] = &[
    "small", "heavy", "bright", "dusty", "green", "broken", "quiet", "wooden", "golden", "cold", "narrow", "ancient", "soft",
    "crooked", "blue", "shiny", "faded", "round", "empty", "painted", "strange", "warm", "rusty", "gentle", "hidden", "tall",
    "plain", "striped", "fragile", "silver", "loud", "muddy", "smooth", "hollow", "purple", "tiny", "worn", "yellow", "odd",
    "elegant",
];
pub(super) const ANIMALS: &[&str] = &[
    "fox", "heron", "goat", "owl", "badger", "cat", "horse", "otter", "crow", "dog", "hare", "donkey", "swan", "mouse",
    "turtle", "goose", "squirrel", "lynx", "pony", "raven",
];
pub(super) const FOODS: &[&str] = &[
    "pears", "onions", "loaves of bread", "eggs", "plums", "carrots", "apples", "lemons", "jars of honey", "walnuts",
    "potatoes", "cherries", "mushrooms", "oranges", "peppers", "figs", "tomatoes", "radishes", "melons", "buns",
];
pub(super) const TRADES: &[&str] = &[
    "baker", "carpenter", "teacher", "gardener", "doctor", "sailor", "painter", "tailor", "farmer", "engineer", "librarian",
    "musician", "miller", "potter", "nurse", "driver", "cook", "clockmaker", "fisher", "mason",
];
pub(super) const WEATHERS: &[&str] = &[
    "rain fell softly", "the wind was strong", "fog lay over the fields", "the sun was bright", "snow covered the roofs",
    "the air smelled of salt", "a storm was near", "the sky was clear", "frost lay on the ground", "the evening was mild",
];
pub(super) const WEEKDAYS: &[&str] = &["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
pub(super) const MONTHS: &[(&str, u64)] = &[
    ("January", 31), ("February", 28), ("March", 31), ("April", 30), ("May", 31), ("June", 30), ("July", 31),
    ("August", 31), ("September", 30), ("October", 31), ("November", 30), ("December", 31),
];
pub(super) const OPENINGS: &[&str] = &[
    "One morning", "Late in the evening", "On a long day in autumn", "Many years ago", "Before sunrise",
];
pub(super) const DISCOVERIES: &[&str] = &[
    "lay under a bench", "hung from a branch", "stood in the middle of the road", "was half buried in sand",
    "waited on the steps",
];
pub(super) const DEEDS: &[&str] = &[
    "looked at it for a long time", "tried to carry it home", "hid behind a wall", "began to sing",
    "asked who had lost it",
];
pub(super) const TURNS: &[&str] = &[
    "pulled at a sleeve", "ran ahead without a sound", "would not move at all", "led the way to the water",
    "seemed to laugh",
];
pub(super) const ENDINGS: &[&str] = &[
    "nobody in town ever spoke of it again", "it has stood by the window ever since",
    "the two of them became good friends", "the owner came and paid with a smile",
    "the door was never locked after that day",
];
pub(super) const CLOSINGS: &[&str] = &[
    "With kind regards", "Yours", "Until soon", "All the best", "With many greetings",
];
pub(super) const HOPES: &[&str] = &[
    "I hope that you are well.", "Please give my greetings to your family.",
    "Write to me when you have time.", "The garden is lovely at this time of the year.",
];

/// A word with its article.
pub(super) fn with_article(word: &str) -> String {
    let article = if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {word}")
}

/// The text with its first letter in upper case.
pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Items with commas between them.
pub(super) fn listed<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Numbers with plus signs between them.
pub(super) fn summed(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" + ")
}
