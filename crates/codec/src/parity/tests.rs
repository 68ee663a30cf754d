//! Every form against a naive model: parity by its definition, and every possible loss undone.

use super::*;

fn forms() -> Vec<Form> {
    let mut forms = vec![Form::Portable];
    #[cfg(target_arch = "x86_64")]
    forms.extend([Form::Avx2, Form::Gfni]);
    forms.retain(|form| form.is_available());
    forms
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below the bound")
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// A stripe as raidz makes them: `big` columns of full height, the others one sector shorter.
fn stripe(random: &mut Random, width: usize, height: usize, sector: usize) -> Vec<Vec<u8>> {
    let big = 1 + random.below(width);
    (0..width)
        .map(|column| {
            random.bytes(if column < big {
                height
            } else {
                height - sector
            })
        })
        .collect()
}

/// Parity by its definition, byte by byte.
fn naive(data: &[Vec<u8>], row: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| {
            data.iter().enumerate().fold(0, |sum, (column, bytes)| {
                let factor = field::power_of_two(row * (data.len() - 1 - column));
                sum ^ field::multiply(factor, bytes.get(at).copied().unwrap_or(0))
            })
        })
        .collect()
}

fn parity_of(form: Form, data: &[Vec<u8>], rows: usize, len: usize) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0xaa; len]; rows];
    let columns: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    generate_as(form, &columns, &mut out);
    parity
}

#[test]
fn every_form_makes_the_parity_of_the_definition() {
    let mut random = Random(0x5eed);
    for round in 0..300 {
        let width = 1 + random.below(if round % 50 == 0 { 255 } else { 12 });
        let sector = 1 + random.below(600);
        let height = sector * (1 + random.below(4));
        let data = stripe(&mut random, width, height, sector);
        for form in forms() {
            for rows in 1..=3 {
                for (row, bytes) in parity_of(form, &data, rows, height).iter().enumerate() {
                    assert_eq!(
                        *bytes,
                        naive(&data, row, height),
                        "{form:?} round {round}, row {row} of {rows}, {width} columns of {height}"
                    );
                }
            }
        }
    }
}

/// Calls `check` with every subset of `0..count` that has at most `most` members.
fn subsets(count: usize, most: usize, check: &mut impl FnMut(&[usize])) {
    fn extend(
        from: usize,
        count: usize,
        most: usize,
        chosen: &mut Vec<usize>,
        check: &mut impl FnMut(&[usize]),
    ) {
        check(chosen);
        if chosen.len() == most {
            return;
        }
        for next in from..count {
            chosen.push(next);
            extend(next + 1, count, most, chosen, check);
            chosen.pop();
        }
    }
    extend(0, count, most, &mut Vec::new(), check);
}

#[test]
fn every_loss_within_the_parity_is_undone() {
    let mut random = Random(0xbad);
    for (width, sector) in [(1, 64), (2, 512), (3, 100), (5, 512), (9, 40)] {
        let height = 3 * sector;
        let data = stripe(&mut random, width, height, sector);
        for (form, rows) in forms().into_iter().flat_map(|f| [(f, 1), (f, 2), (f, 3)]) {
            let parity = parity_of(form, &data, rows, height);
            subsets(rows + width, rows, &mut |lost| {
                let left = |index: usize| !lost.contains(&index);
                let known: Vec<Option<&[u8]>> = (0..width)
                    .map(|i| left(rows + i).then(|| data[i].as_slice()))
                    .collect();
                let rows: Vec<Option<&[u8]>> = (0..rows)
                    .map(|i| left(i).then(|| parity[i].as_slice()))
                    .collect();
                let gone: Vec<usize> = (0..width).filter(|&i| known[i].is_none()).collect();
                let mut out: Vec<Vec<u8>> = gone.iter().map(|&i| vec![1; data[i].len()]).collect();
                let mut places: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
                reconstruct_as(form, &known, &rows, &mut places).expect("enough is left");
                for (i, bytes) in gone.iter().zip(&out) {
                    assert_eq!(*bytes, data[*i], "{form:?}: {lost:?} of {width} lost");
                }
            });
        }
    }
}

#[test]
fn long_columns_and_wide_stripes() {
    let mut random = Random(7);
    for width in [2, 30, 252] {
        let data = stripe(&mut random, width, 8704, 512);
        let len = data[0].len();
        for form in forms() {
            let parity = parity_of(form, &data, 3, len);
            let gone = [0, width / 2, width - 1];
            let gone: Vec<usize> = if width == 2 {
                vec![0, 1]
            } else {
                gone.to_vec()
            };
            let known: Vec<Option<&[u8]>> = (0..width)
                .map(|i| (!gone.contains(&i)).then(|| data[i].as_slice()))
                .collect();
            let rows: Vec<Option<&[u8]>> = parity.iter().map(|row| Some(row.as_slice())).collect();
            let mut out: Vec<Vec<u8>> = gone.iter().map(|&i| vec![1; data[i].len()]).collect();
            let mut places: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
            reconstruct_as(form, &known, &rows, &mut places).expect("enough is left");
            for (i, bytes) in gone.iter().zip(&out) {
                assert!(*bytes == data[*i], "{form:?}: column {i} of {width}");
            }
        }
    }
}

#[test]
fn too_great_a_loss_is_said() {
    let row = [1_u8; 8];
    let mut out = [0_u8; 8];
    let mut second = [0_u8; 8];
    let lost = &mut [&mut out[..], &mut second[..]];
    assert_eq!(
        reconstruct(&[None, None], &[Some(&row)], lost),
        Err(NotEnough)
    );
    assert_eq!(
        reconstruct(&[None], &[None, None], &mut lost[..1]),
        Err(NotEnough)
    );
    let long = [0_u8; 9];
    assert_eq!(
        reconstruct(&[None, Some(&long)], &[Some(&row)], &mut lost[..1]),
        Err(NotEnough)
    );
}
