//! Columns on the CPU: all of a query in one pass.
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::DType;
use pulp::Arch;
use rayon::prelude::*;

use super::{Column, ColumnGradients, Columns};
use crate::fresh::{rows_of_zeros, zeros};
use crate::kernels::host::{HeadRows, Read, each_row_beside, owned, shape_of, tensor};
use crate::kernels::rows;
use crate::vectorised;

/// Sizes of a column.
struct Sizes {
    heads: usize,
    kv_heads: usize,
    rows: usize,
    d_head: usize,
}

impl Sizes {
    fn of(column: &Column<Flex>) -> Self {
        let [_, heads, rows, d_head] = shape_of(&column.query)[..] else {
            unreachable!("queries have four dimensions");
        };
        Self {
            heads,
            kv_heads: shape_of(&column.key)[1],
            rows,
            d_head,
        }
    }

    /// Rows of all query heads that share a key head.
    fn of_group(&self) -> usize {
        self.heads / self.kv_heads * self.rows
    }

    /// Sequence, head and row of the row number `row` of the query heads that share the key head number `group` of all sequences.
    fn place(&self, group: usize, row: usize) -> [usize; 3] {
        let [sequence, kv_head] = self.place_of_key(group);
        let head = kv_head * (self.heads / self.kv_heads) + row / self.rows;
        [sequence, head, row % self.rows]
    }

    /// Sequence and head of a key head.
    fn place_of_key(&self, group: usize) -> [usize; 2] {
        [group / self.kv_heads, group % self.kv_heads]
    }
}

/// Queries, keys and values, row by row.
struct Inputs {
    query: HeadRows,
    key: HeadRows,
    value: HeadRows,
    scale: f32,
}

impl Inputs {
    /// Those of a column, and the largest scores.
    fn of(column: Column<Flex>) -> (Self, FlexTensor) {
        let [query, key, value] = [column.query, column.key, column.value].map(HeadRows::of);
        let inputs = Self {
            query,
            key,
            value,
            scale: column.scale,
        };
        (inputs, column.largest)
    }

    /// What is there of a query and of its key.
    #[inline(always)]
    fn row(&self, of_query: [usize; 3], of_key: [usize; 3], largest: f32) -> rows::ColumnRow<'_> {
        rows::ColumnRow {
            query: self.query.row(of_query),
            key: self.key.row(of_key),
            value: self.value.row(of_key),
            largest,
            scale: self.scale,
        }
    }
}

impl Columns for Flex {
    fn add_column(column: Column<Self>, sums: FlexTensor) -> (FlexTensor, FlexTensor) {
        let sizes = Sizes::of(&column);
        let (inputs, largest) = Inputs::of(column);
        let (mut sums, mut largest) = (owned(sums), owned(largest));
        let (rows, width) = (sizes.of_group(), sizes.d_head + 1);
        let arch = Arch::new();
        (sums.storage_mut().par_chunks_mut(rows * width))
            .zip(largest.storage_mut().par_chunks_mut(rows))
            .enumerate()
            .for_each(|(group, (sums, largest))| {
                let [sequence, kv_head] = sizes.place_of_key(group);
                vectorised!(arch, {
                    let sums = sums.chunks_exact_mut(width).zip(largest);
                    for (number, (sums, largest)) in sums.enumerate() {
                        let place = sizes.place(group, number);
                        let own = [sequence, kv_head, place[2]];
                        let row = inputs.row(place, own, *largest);
                        *largest = rows::add_column(sums, row);
                    }
                });
            });
        (sums, largest)
    }

    fn quotient(sums: FlexTensor, dtype: DType) -> (FlexTensor, FlexTensor) {
        let mut shape = shape_of(&sums);
        let width = shape[3];
        shape[3] = 1;
        let of_rows = shape.clone();
        shape[3] = width - 1;
        let sums = Read::of(sums);
        let sums = sums.values();
        let [mut context, mut factors] =
            [&shape, &of_rows].map(|shape| zeros(shape.iter().product()));
        let arch = Arch::new();
        each_row_beside(
            &mut context,
            width - 1,
            &mut factors,
            |number, context, factor| {
                let sums = &sums[number * width..][..width];
                *factor = vectorised!(arch, rows::quotient(context, sums));
            },
        );
        (
            tensor(context, shape, dtype),
            tensor(factors, of_rows, DType::F32),
        )
    }
}

impl ColumnGradients for Flex {
    fn add_column_backward(
        column: Column<Self>,
        gradient: FlexTensor,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        let sizes = Sizes::of(&column);
        let given = [&column.query, &column.key, &column.value];
        let [of_query, of_key, of_value] = given.map(|x| (shape_of(x), x.dtype()));
        let like = |(shape, _): &(Vec<usize>, DType)| zeros(shape.iter().product());
        let [mut by_query, mut by_key, mut by_value] = [&of_query, &of_key, &of_value].map(like);
        let (inputs, largest) = Inputs::of(column);
        let (mut gradient, largest) = (owned(gradient), Read::of(largest));
        let largest = largest.values();
        let (rows, width) = (sizes.of_group(), sizes.d_head);
        let arch = Arch::new();
        (gradient.storage_mut().par_chunks_mut(rows * (width + 1)))
            .zip(by_query.par_chunks_mut(rows * width))
            .zip(by_key.par_chunks_mut(sizes.rows * width))
            .zip(by_value.par_chunks_mut(sizes.rows * width))
            .enumerate()
            .for_each(|(group, (((gradient, by_query), by_key), by_value))| {
                let [sequence, kv_head] = sizes.place_of_key(group);
                vectorised!(arch, {
                    let both = (gradient.chunks_exact_mut(width + 1))
                        .zip(by_query.chunks_exact_mut(width));
                    for (number, (gradient, by_query)) in both.enumerate() {
                        let place = sizes.place(group, number);
                        let own = [sequence, kv_head, place[2]];
                        let of_row = place[2] * width..(place[2] + 1) * width;
                        rows::add_column_backward(
                            gradient,
                            inputs.row(place, own, largest[group * rows + number]),
                            [by_query, &mut by_key[of_row.clone()], &mut by_value[of_row]],
                        );
                    }
                });
            });
        (
            tensor(by_query, of_query.0, of_query.1),
            tensor(by_key, of_key.0, of_key.1),
            tensor(by_value, of_value.0, of_value.1),
            gradient,
        )
    }

    fn quotient_backward(
        quotient: FlexTensor,
        factor: FlexTensor,
        gradient: FlexTensor,
    ) -> FlexTensor {
        let mut shape = shape_of(&quotient);
        let d_head = shape[3];
        shape[3] += 1;
        let given = [quotient, factor, gradient].map(Read::of);
        let [quotient, factors, gradient] = given.each_ref().map(Read::values);
        let arch = Arch::new();
        let count = shape.iter().product();
        let by_sums = rows_of_zeros(count, d_head + 1, |number, by_sums| {
            let [quotient, gradient] =
                [quotient, gradient].map(|all| &all[number * d_head..][..d_head]);
            vectorised!(
                arch,
                rows::quotient_backward(by_sums, quotient, factors[number], gradient)
            );
        });
        tensor(by_sums, shape, DType::F32)
    }
}
