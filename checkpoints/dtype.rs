//! The types of tensors' elements.

use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    F8E4M3,
    F8E5M2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

/// Each type, how safetensors spells it, and its size in bytes.
const DTYPES: [(DType, &str, usize); 15] = [
    (DType::F64, "F64", 8),
    (DType::F32, "F32", 4),
    (DType::F16, "F16", 2),
    (DType::BF16, "BF16", 2),
    (DType::F8E4M3, "F8_E4M3", 1),
    (DType::F8E5M2, "F8_E5M2", 1),
    (DType::I64, "I64", 8),
    (DType::I32, "I32", 4),
    (DType::I16, "I16", 2),
    (DType::I8, "I8", 1),
    (DType::U64, "U64", 8),
    (DType::U32, "U32", 4),
    (DType::U16, "U16", 2),
    (DType::U8, "U8", 1),
    (DType::Bool, "BOOL", 1),
];

impl DType {
    /// Bytes per element.
    pub fn size(self) -> usize {
        DTYPES[self as usize].2
    }

    /// The spelling in a safetensors header.
    pub fn name(self) -> &'static str {
        DTYPES[self as usize].1
    }

    /// Whether the weights of a model can have this type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    pub(crate) fn from_name(name: &str) -> Option<DType> {
        DTYPES
            .iter()
            .find(|(_, known, _)| *known == name)
            .map(|(dtype, ..)| *dtype)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_table_is_in_the_order_of_the_enum() {
        for (position, (dtype, name, _)) in DTYPES.iter().enumerate() {
            assert_eq!(*dtype as usize, position);
            assert_eq!(DType::from_name(name), Some(*dtype));
        }
    }
}
