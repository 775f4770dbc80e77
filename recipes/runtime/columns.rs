//! Layers picked out of rows that have several side by side.

/// Where each of the `wanted` layers stands among the stored ones; `None` where one is missing.
pub(crate) fn columns(wanted: &[usize], stored: &[usize]) -> Option<Vec<usize>> {
    let column = |layer| stored.iter().position(|found| found == layer);
    wanted.iter().map(column).collect()
}

/// The layers at `columns` of each row, which has `layers` of them.
///
/// # Shapes
/// - rows: `[tokens, layers * d_model]`
/// - output: `[tokens, columns * d_model]`
pub(crate) fn pick(rows: &[u16], layers: usize, columns: &[usize], d_model: usize) -> Vec<u16> {
    if columns.is_empty() {
        return Vec::new();
    }
    let mut picked = Vec::with_capacity(rows.len() / layers * columns.len());
    for row in rows.chunks(layers * d_model) {
        for &column in columns {
            picked.extend_from_slice(&row[column * d_model..(column + 1) * d_model]);
        }
    }
    picked
}
