//! What one unit does.
#![expect(
    clippy::too_many_lines,
    reason = "the passes of a kernel over its row share what its unit holds"
)]
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use spectrain_models::cube::reduce::{best_of, lanes_sum, own_row, row_sum};

/// 1 where the vector at `at` of a row holds the element number `index`.
#[cube]
fn on_lane<N: Size>(at: usize, index: u32) -> Vector<f32, N> {
    let mut found = Vector::<f32, N>::new(0.0);
    #[unroll]
    for lane in 0..N::value() {
        if (at * N::value() + lane) as u32 == index {
            found.insert(lane, 1.0f32);
        }
    }
    found
}

/// The probabilities of a row's logits `x`, of which `most` is the largest and `sum` that of the exponentials.
#[cube]
fn probability<N: Size>(x: Vector<f32, N>, most: f32, sum: f32) -> Vector<f32, N> {
    (x - Vector::new(most)).exp() / Vector::new(sum)
}

/// `values`, and zero where `x` is below `bound`.
#[cube]
fn reaching<N: Size>(x: Vector<f32, N>, bound: f32, values: Vector<f32, N>) -> Vector<f32, N> {
    let none = Vector::<f32, N>::new(0.0);
    select_many(x.greater_equal(&Vector::new(bound)), values, none)
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn judge_target_kernel<E: Float, I: Int, N: Size>(
    logits: &mut [Vector<E, N>],
    teacher: &[Vector<f32, N>],
    places: &[I],
    partitions: &[f32],
    weights: &[f32],
    found: &mut [f32],
    rows: u32,
    vectors: u32,
    least: &[f32],
    sharpness: f32,
    #[comptime] is_partial: bool,
    #[comptime] to_best: bool,
    #[comptime] to_largest: bool,
    #[comptime] with_entropy: bool,
    #[comptime] units: usize,
    #[define(E, I)] _dtypes: [ElemType; 2],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let mut room_of_indices = Shared::<[u32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let place = usize::cast_from(places[row]);
    let (start, of_teacher) = (row * vectors, place * vectors);
    let (most_q, best_q) =
        best_of::<E, N>(&*logits, start, vectors, &mut room, &mut room_of_indices);
    let (most_p, best_p) = best_of::<f32, N>(
        teacher,
        of_teacher,
        vectors,
        &mut room,
        &mut room_of_indices,
    );
    let mut sums_q = Vector::<f32, N>::new(0.0);
    let mut sums_p = Vector::<f32, N>::new(0.0);
    let mut logs_q = Vector::<f32, N>::new(0.0);
    let mut sums_towards = Vector::<f32, N>::new(0.0);
    let mut logs_towards = Vector::<f32, N>::new(0.0);
    let mut bound = 0.0f32;
    if comptime!(to_largest) {
        bound = least[place];
    }
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let q = Vector::<f32, N>::cast_from(logits[start + at]) - Vector::new(most_q);
        let p = teacher[of_teacher + at] - Vector::new(most_p);
        sums_q += q.exp();
        sums_p += p.exp();
        if comptime!(to_best) {
            logs_q += on_lane::<N>(at, best_p) * q;
        } else {
            let tempered = p * Vector::new(sharpness);
            let mut exponential = tempered.exp();
            if comptime!(to_largest) {
                exponential = reaching::<N>(teacher[of_teacher + at], bound, exponential);
            }
            sums_towards += exponential;
            logs_q += exponential * q;
            logs_towards += exponential * tempered;
        }
        at += CUBE_DIM_X as usize;
    }
    let sum_q = row_sum(lanes_sum::<N>(sums_q), &mut room);
    let sum_p = row_sum(lanes_sum::<N>(sums_p), &mut room);
    let mut sum_towards = 1.0f32;
    let mut mass = 1.0f32;
    if comptime!(!to_best) {
        sum_towards = row_sum(lanes_sum::<N>(sums_towards), &mut room);
    }
    if comptime!(to_largest) {
        // What is left is not renormalised.
        mass = sum_towards / sum_p;
        sum_towards = sum_p;
    }
    let log_q = row_sum(lanes_sum::<N>(logs_q), &mut room) / sum_towards - mass * sum_q.ln();
    let entropy = row_sum(lanes_sum::<N>(logs_towards), &mut room) / sum_towards;
    let log_towards = entropy - sum_towards.ln();
    let mut covered = 1.0f32;
    if comptime!(is_partial) {
        covered = (most_p + sum_p.ln() - partitions[place]).exp();
    }
    let weight = weights[row];
    let mut shared = Vector::<f32, N>::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let q = probability::<N>(Vector::cast_from(logits[start + at]), most_q, sum_q);
        let shifted = teacher[of_teacher + at] - Vector::new(most_p);
        let p = shifted.exp() / Vector::new(sum_p);
        shared += min(q, p * Vector::new(covered));
        let mut towards = on_lane::<N>(at, best_p);
        if comptime!(!to_best) {
            towards = (shifted * Vector::new(sharpness)).exp() / Vector::new(sum_towards);
        }
        if comptime!(to_largest) {
            towards = reaching::<N>(teacher[of_teacher + at], bound, towards);
        }
        if there {
            let gradient = (q * Vector::new(mass) - towards) * Vector::new(weight);
            logits[start + at] = Vector::cast_from(gradient);
        }
        at += CUBE_DIM_X as usize;
    }
    let alpha = row_sum(lanes_sum::<N>(shared), &mut room);
    if there && UNIT_POS_X == 0 {
        let mut value = -log_q;
        if comptime!(with_entropy) {
            value += log_towards;
        }
        found[row * 3] = value;
        found[row * 3 + 1] = alpha;
        found[row * 3 + 2] = select(best_q == best_p, 1.0f32, 0.0f32);
    }
}

/// What each distance of a blend is multiplied by, and the bounds that keep it finite.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct BlendFactors {
    kl: f32,
    reverse_kl: f32,
    jsd: f32,
    beta: f32,
    ce: f32,
    tv: f32,
    tv_plus_plus: f32,
    nla: f32,
    lk_hybrid: f32,
    decay: f32,
    least_alpha: f32,
    least_deviation: f32,
}

/// Slope of `min(p, q)` in `q`: 1 below `p`, 0 above, and half where they are equal.
#[cube]
fn rising<N: Size>(q: Vector<f32, N>, p: Vector<f32, N>) -> Vector<f32, N> {
    let (half, none) = (Vector::<f32, N>::new(0.5), Vector::<f32, N>::new(0.0));
    select_many(p.greater_than(&q), half, none) + select_many(p.greater_equal(&q), half, none)
}

/// `log (β p + (1 - β) q)`. Where both are zero it is multiplied by them, so it need only be finite.
#[cube]
fn log_mixture<N: Size>(q: Vector<f32, N>, p: Vector<f32, N>, beta: f32) -> Vector<f32, N> {
    let mixture = p * Vector::new(beta) + q * Vector::new(1.0f32 - beta);
    max(mixture, Vector::new(f32::MIN_POSITIVE)).ln()
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn judge_blend_kernel<E: Float, I: Int, N: Size>(
    logits: &mut [Vector<E, N>],
    teacher: &[Vector<f32, N>],
    places: &[I],
    partitions: &[f32],
    weights: &[f32],
    found: &mut [f32],
    rows: u32,
    vectors: u32,
    factors: BlendFactors,
    #[comptime] is_partial: bool,
    #[comptime] takes_logarithms: bool,
    #[comptime] units: usize,
    #[define(E, I)] _dtypes: [ElemType; 2],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let mut room_of_indices = Shared::<[u32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let place = usize::cast_from(places[row]);
    let (start, of_teacher) = (row * vectors, place * vectors);
    let (most_q, best_q) =
        best_of::<E, N>(&*logits, start, vectors, &mut room, &mut room_of_indices);
    let (most_p, best_p) = best_of::<f32, N>(
        teacher,
        of_teacher,
        vectors,
        &mut room,
        &mut room_of_indices,
    );
    let mut sums_q = Vector::<f32, N>::new(0.0);
    let mut sums_p = Vector::<f32, N>::new(0.0);
    let mut logs_q = Vector::<f32, N>::new(0.0);
    let mut logs_p = Vector::<f32, N>::new(0.0);
    let mut of_best = Vector::<f32, N>::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let q = Vector::<f32, N>::cast_from(logits[start + at]) - Vector::new(most_q);
        let p = teacher[of_teacher + at] - Vector::new(most_p);
        let exponential = p.exp();
        sums_q += q.exp();
        sums_p += exponential;
        logs_q += exponential * q;
        logs_p += exponential * p;
        of_best += on_lane::<N>(at, best_p) * q;
        at += CUBE_DIM_X as usize;
    }
    let sum_q = row_sum(lanes_sum::<N>(sums_q), &mut room);
    let sum_p = row_sum(lanes_sum::<N>(sums_p), &mut room);
    let between = row_sum(lanes_sum::<N>(logs_p - logs_q), &mut room) / sum_p;
    let kl = between - sum_p.ln() + sum_q.ln();
    let ce = sum_q.ln() - row_sum(lanes_sum::<N>(of_best), &mut room);
    let mut covered = 1.0f32;
    if comptime!(is_partial) {
        covered = (most_p + sum_p.ln() - partitions[place]).exp();
    }
    let (partition_q, partition_p) = (most_q + sum_q.ln(), most_p + sum_p.ln());
    let mut shared = Vector::<f32, N>::new(0.0);
    let mut slopes = Vector::<f32, N>::new(0.0);
    let mut squares = Vector::<f32, N>::new(0.0);
    let mut reverses = Vector::<f32, N>::new(0.0);
    let mut to_p = Vector::<f32, N>::new(0.0);
    let mut to_q = Vector::<f32, N>::new(0.0);
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let q = probability::<N>(Vector::cast_from(logits[start + at]), most_q, sum_q);
        let p = probability::<N>(teacher[of_teacher + at], most_p, sum_p);
        let of_all = p * Vector::new(covered);
        let slope = rising::<N>(q, of_all);
        shared += min(q, of_all);
        slopes += q * slope;
        squares += q * slope * slope;
        if comptime!(takes_logarithms) {
            let log_q = Vector::<f32, N>::cast_from(logits[start + at]) - Vector::new(partition_q);
            let log_p = teacher[of_teacher + at] - Vector::new(partition_p);
            let log_m = log_mixture::<N>(q, p, factors.beta);
            reverses += q * (log_q - log_p);
            to_p += p * (log_p - log_m);
            to_q += q * (log_q - log_m);
        }
        at += CUBE_DIM_X as usize;
    }
    let alpha = row_sum(lanes_sum::<N>(shared), &mut room);
    let mean = row_sum(lanes_sum::<N>(slopes), &mut room);
    let variance = row_sum(lanes_sum::<N>(squares), &mut room) - mean * mean;
    // As `Blend::of` on the CPU.
    let floored = max(alpha, factors.least_alpha);
    let of_nla = select(alpha >= factors.least_alpha, factors.nla / floored, 0.0f32);
    let deviation = max(max(variance, 0.0f32).sqrt(), factors.least_deviation);
    let share = (-alpha * factors.decay).exp();
    let of_rest = factors.lk_hybrid * (1.0f32 - share);
    let of_kl = factors.kl + factors.lk_hybrid * share;
    let of_slope = factors.tv + factors.tv_plus_plus / deviation + of_nla + of_rest;
    let mut reverse = 0.0f32;
    let mut from_q = 0.0f32;
    let mut jsd = 0.0f32;
    let rest = 1.0f32 - factors.beta;
    if comptime!(takes_logarithms) {
        reverse = row_sum(lanes_sum::<N>(reverses), &mut room);
        from_q = row_sum(lanes_sum::<N>(to_q), &mut room);
        let from_p = row_sum(lanes_sum::<N>(to_p), &mut room);
        jsd = factors.beta * from_p + rest * from_q;
    }
    let weight = weights[row];
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let q = probability::<N>(Vector::cast_from(logits[start + at]), most_q, sum_q);
        let p = probability::<N>(teacher[of_teacher + at], most_p, sum_p);
        let slope = rising::<N>(q, p * Vector::new(covered)) - Vector::new(mean);
        let mut pull = Vector::new(of_kl + factors.ce) - slope * Vector::new(of_slope);
        if comptime!(takes_logarithms) {
            let log_q = Vector::<f32, N>::cast_from(logits[start + at]) - Vector::new(partition_q);
            let log_p = teacher[of_teacher + at] - Vector::new(partition_p);
            let log_m = log_mixture::<N>(q, p, factors.beta);
            let of_reverse = log_q - log_p - Vector::new(reverse);
            let of_mixture = log_q - log_m - Vector::new(from_q);
            pull += of_reverse * Vector::new(factors.reverse_kl);
            pull += of_mixture * Vector::new(factors.jsd * rest);
        }
        let target = p * Vector::new(of_kl) + on_lane::<N>(at, best_p) * Vector::new(factors.ce);
        if there {
            let gradient = (q * pull - target) * Vector::new(weight);
            logits[start + at] = Vector::cast_from(gradient);
        }
        at += CUBE_DIM_X as usize;
    }
    if there && UNIT_POS_X == 0 {
        let of_alpha = factors.tv + factors.tv_plus_plus + of_rest;
        found[row * 3] = of_kl * kl + factors.ce * ce + of_alpha * (1.0f32 - alpha)
            - factors.nla * floored.ln()
            + factors.reverse_kl * reverse
            + factors.jsd * jsd;
        found[row * 3 + 1] = alpha;
        found[row * 3 + 2] = select(best_q == best_p, 1.0f32, 0.0f32);
    }
}

#[cube(launch, address_type = "dynamic")]
pub(super) fn judge_labels_kernel<E: Float, I: Int, N: Size>(
    logits: &mut [Vector<E, N>],
    labels: &[I],
    weights: &[f32],
    found: &mut [f32],
    rows: u32,
    vectors: u32,
    #[comptime] units: usize,
    #[define(E, I)] _dtypes: [ElemType; 2],
) {
    let mut room = Shared::<[f32]>::new_slice(units);
    let mut room_of_indices = Shared::<[u32]>::new_slice(units);
    let (row, there) = own_row(rows);
    let vectors = vectors as usize;
    let start = row * vectors;
    let label = usize::cast_from(labels[row]);
    let (most, best) = best_of::<E, N>(&*logits, start, vectors, &mut room, &mut room_of_indices);
    let mut sums = Vector::<f32, N>::new(0.0);
    let mut of_label = 0.0f32;
    let mut at = UNIT_POS_X as usize;
    while at < vectors {
        let q = Vector::<f32, N>::cast_from(logits[start + at]) - Vector::new(most);
        sums += q.exp();
        #[unroll]
        for lane in 0..N::value() {
            if at * N::value() + lane == label {
                of_label = q.extract(lane);
            }
        }
        at += CUBE_DIM_X as usize;
    }
    let sum = row_sum(lanes_sum::<N>(sums), &mut room);
    // One unit has found it, the others nothing.
    let log_q = row_sum(of_label, &mut room) - sum.ln();
    let weight = weights[row];
    if there {
        let mut at = UNIT_POS_X as usize;
        while at < vectors {
            let q = probability::<N>(Vector::cast_from(logits[start + at]), most, sum);
            let mut gradient = q * Vector::new(weight);
            #[unroll]
            for lane in 0..N::value() {
                if at * N::value() + lane == label {
                    gradient.insert(lane, gradient.extract(lane) - weight);
                }
            }
            logits[start + at] = Vector::cast_from(gradient);
            at += CUBE_DIM_X as usize;
        }
        if UNIT_POS_X == 0 {
            found[row * 3] = -log_q;
            found[row * 3 + 1] = log_q.exp();
            found[row * 3 + 2] = select(best as usize == label, 1.0f32, 0.0f32);
        }
    }
}
