//! The cells of tables as JSON.

use arrow::array::{Array, AsArray, StructArray};
use arrow::datatypes::{
    DataType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use chrono::DateTime;
use serde_json::Value;
use spectrain_checkpoints::Mismatch;

use crate::error::Error;
use crate::rows::location::{LONGEST_ROW, Location};

/// What is made of a cell that has no form in JSON, such as a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Formless {
    /// It is refused: a row is read from it.
    Refused,
    /// Its text: it is copied and nothing else.
    Printed,
}

/// How cells become JSON.
#[derive(Debug, Clone, Copy)]
pub(super) struct Printing {
    pub(super) formless: Formless,
    pub(super) nulls: Nulls,
}

/// What becomes of keys that are null. A table gives every row all keys of any, so they say nothing: a template that prints the
/// definition of a tool would print the parameters of all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nulls {
    Kept,
    /// Those of objects in objects are left out: of a message it is told which keys are null.
    LeftOutInside,
    LeftOut,
}

/// Why a cell has no JSON.
pub(super) enum Refusal {
    /// Its type.
    Kind(DataType),
    /// Its row would be too long.
    TooLong,
}

impl Refusal {
    /// The error of a row at this place, or of the file.
    pub(super) fn at(self, column: &str, location: &Location) -> Error {
        match self {
            Self::Kind(kind) => Error::File {
                path: location.file.to_path_buf(),
                mismatch: Mismatch::new(
                    format!("texts, numbers, lists or structs in column `{column}`"),
                    kind,
                ),
            },
            Self::TooLong => Error::Row {
                location: location.to_string(),
                mismatch: Mismatch::new(
                    format!("a row of at most {} MiB", LONGEST_ROW >> 20),
                    "a longer one",
                ),
            },
        }
    }
}

pub(super) fn begin_field(text: &mut String, name: &str) {
    if !text.ends_with('{') {
        text.push(',');
    }
    text.push_str(&Value::from(name).to_string());
    text.push(':');
}

/// Adds one cell of a table as JSON.
pub(super) fn cell(
    column: &dyn Array,
    row: usize,
    (text, printing): (&mut String, Printing),
) -> Result<(), Refusal> {
    if text.len() > LONGEST_ROW {
        return Err(Refusal::TooLong);
    }
    if column.is_null(row) {
        text.push_str("null");
        return Ok(());
    }
    let value: Value = match column.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => column.as_boolean().value(row).into(),
        DataType::Int8 => column.as_primitive::<Int8Type>().value(row).into(),
        DataType::Int16 => column.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => column.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).into(),
        DataType::UInt8 => column.as_primitive::<UInt8Type>().value(row).into(),
        DataType::UInt16 => column.as_primitive::<UInt16Type>().value(row).into(),
        DataType::UInt32 => column.as_primitive::<UInt32Type>().value(row).into(),
        DataType::UInt64 => column.as_primitive::<UInt64Type>().value(row).into(),
        DataType::Float32 => column.as_primitive::<Float32Type>().value(row).into(),
        DataType::Float64 => column.as_primitive::<Float64Type>().value(row).into(),
        DataType::Utf8 => column.as_string::<i32>().value(row).into(),
        DataType::LargeUtf8 => column.as_string::<i64>().value(row).into(),
        DataType::Utf8View => column.as_string_view().value(row).into(),
        DataType::List(_) => return list(&column.as_list::<i32>().value(row), (text, printing)),
        DataType::LargeList(_) => {
            return list(&column.as_list::<i64>().value(row), (text, printing));
        }
        DataType::FixedSizeList(..) => {
            return list(&column.as_fixed_size_list().value(row), (text, printing));
        }
        DataType::Dictionary(..) => {
            let one = column.slice(row, 1);
            let one = one.as_any_dictionary();
            return cell(one.values(), one.normalized_keys()[0], (text, printing));
        }
        DataType::Struct(_) => return object(column.as_struct(), row, (text, printing)),
        other => match printing.formless {
            Formless::Refused => return Err(Refusal::Kind(other.clone())),
            Formless::Printed => printed(column, row)
                .ok_or_else(|| Refusal::Kind(other.clone()))?
                .into(),
        },
    };
    text.push_str(&value.to_string());
    Ok(())
}

/// What stands for a cell that has no form in JSON; none where it has no text either.
fn printed(column: &dyn Array, row: usize) -> Option<String> {
    // Those with a time zone count from one moment, whatever the zone; names of zones are not known here.
    if let DataType::Timestamp(unit, Some(_)) = column.data_type() {
        let moment = match unit {
            TimeUnit::Second => {
                let value = column.as_primitive::<TimestampSecondType>().value(row);
                DateTime::from_timestamp(value, 0)?
            }
            TimeUnit::Millisecond => {
                let value = column.as_primitive::<TimestampMillisecondType>().value(row);
                DateTime::from_timestamp_millis(value)?
            }
            TimeUnit::Microsecond => {
                let value = column.as_primitive::<TimestampMicrosecondType>().value(row);
                DateTime::from_timestamp_micros(value)?
            }
            TimeUnit::Nanosecond => {
                let value = column.as_primitive::<TimestampNanosecondType>().value(row);
                DateTime::from_timestamp_nanos(value)
            }
        };
        return Some(moment.format("%FT%T%.fZ").to_string());
    }
    let formatter = ArrayFormatter::try_new(column, &FormatOptions::default()).ok()?;
    formatter.value(row).try_to_string().ok()
}

fn list(items: &dyn Array, (text, printing): (&mut String, Printing)) -> Result<(), Refusal> {
    text.push('[');
    for item in 0..items.len() {
        if item > 0 {
            text.push(',');
        }
        cell(items, item, (&mut *text, printing))?;
    }
    text.push(']');
    Ok(())
}

fn object(
    columns: &StructArray,
    row: usize,
    (text, printing): (&mut String, Printing),
) -> Result<(), Refusal> {
    text.push('{');
    let inner = Printing {
        nulls: match printing.nulls {
            Nulls::Kept => Nulls::Kept,
            Nulls::LeftOutInside | Nulls::LeftOut => Nulls::LeftOut,
        },
        ..printing
    };
    for (field, column) in columns.fields().iter().zip(columns.columns()) {
        let is_null = column.is_null(row) || *column.data_type() == DataType::Null;
        if is_null && printing.nulls == Nulls::LeftOut {
            continue;
        }
        begin_field(text, field.name());
        cell(column, row, (&mut *text, inner))?;
    }
    text.push('}');
    Ok(())
}
