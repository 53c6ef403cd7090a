#!/usr/bin/env python3
"""How good the model of tools/quickstart.sh has become.

    quickstart_report.py --data=DIR --run=RUN [--samples=FILE]

Prints bits per byte over all held-out bytes beside `gzip -9` and `xz -9` on the
same bytes; of samples (what `generate --num_samples=N --prompt=$'\\nc'` prints)
how many follow the form of the dictionary's entries, and the longest piece of
training text that one of them repeats. DIR is what `prepare` wrote with
--tokenizer=bytes; the last evaluation of RUN must have taken all held-out
bytes.

The form of an entry: a line with the headword; senses, indented by four, whose
first is "n 1: ...", "v 1: ...", "adj 1: ..." or "adv 1: ..." and whose next
are "2: ..." or of another part of speech; what follows in a sense is indented
as deep as its text begins; brackets and braces are closed where a sense ends.
"""

import argparse
import gzip
import json
import lzma
import math
import os
import re
import sys

HEADER = 1024  # of a token file: 256 numbers of 32 bits
FIRST = re.compile(r'    ((?:n|v|adj|adv) 1:) \S')
NEXT = re.compile(r'    ((\d+):) \S')
MORE = re.compile(r'( +)\S')


def read_tokens(path):
    """The bytes that a token file holds as 16-bit numbers."""
    with open(path, 'rb') as file:
        words = file.read()[HEADER:]
    if any(words[1:4096:2]):
        sys.exit('quickstart_report: %s holds tokens that are not bytes' % path)
    return words[::2]


def closed(text):
    """Whether brackets and braces of a finished sense are closed."""
    return (text.count('[') == text.count(']') and text.count('{') == text.count('}'))


def follows_form(text):
    """Whether all whole lines of a sample are entries, one after the other."""
    lines = text.split('\n')[:-1]  # the last one may have been cut off
    while lines and not lines[0]:
        lines.pop(0)
    number, indent, sense, senses = 0, None, '', 0
    after_head = False
    for line in lines:
        first, following, more = FIRST.match(line), NEXT.match(line), MORE.match(line)
        if first or following:
            if not (first and (after_head or number) or
                    following and number and int(following.group(2)) == number + 1):
                return False
            if not closed(sense):
                return False
            number = 1 if first else number + 1
            indent, sense = 5 + len((first or following).group(1)), line
            after_head, senses = False, senses + 1
        elif more:
            if indent != len(more.group(1)):
                return False
            sense += ' ' + line.strip()
        else:
            if not line or after_head or not closed(sense):
                return False
            after_head, number, indent, sense = True, 0, None, ''
    return senses > 0


def longest_repeat(samples, text):
    """Bytes of the longest piece of `text` that one of the samples has, if more than 31."""
    piece = 16
    places = {}
    for index, sample in enumerate(samples):
        for at in range(len(sample) - piece + 1):
            places.setdefault(sample[at:at + piece], []).append((index, at))
    longest = 0
    for begin in range(0, len(text) - piece + 1, piece):
        for index, at in places.get(text[begin:begin + piece], ()):
            sample = samples[index]
            left = 0
            while (left < at and left < begin and
                   sample[at - left - 1] == text[begin - left - 1]):
                left += 1
            right = piece
            while (at + right < len(sample) and begin + right < len(text) and
                   sample[at + right] == text[begin + right]):
                right += 1
            longest = max(longest, left + right)
    return longest


def last_evaluation(run):
    evaluations = []
    with open(os.path.join(run, 'metrics.jsonl')) as file:
        for line in file:
            line = json.loads(line)
            if 'eval_loss' in line:
                evaluations.append(line)
    if not evaluations:
        sys.exit('quickstart_report: %s has no evaluation' % run)
    return evaluations[-1]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', required=True)
    parser.add_argument('--run', required=True)
    parser.add_argument('--samples', default='')
    args = parser.parse_args()

    held_out = read_tokens(os.path.join(args.data, 'val.bin'))
    evaluation = last_evaluation(args.run)
    if evaluation['eval_tokens'] < 0.999 * len(held_out):
        print('(only %d of %d held-out bytes were evaluated: evaluation.all_at_end is not set)' %
              (evaluation['eval_tokens'], len(held_out)))
    ours = evaluation['eval_loss'] / math.log(2)
    by_gzip = 8 * len(gzip.compress(held_out, 9)) / len(held_out)
    by_xz = 8 * len(lzma.compress(held_out, preset=9)) / len(held_out)
    print('bits per byte over %d held-out bytes: %.3f; gzip -9 %.3f, xz -9 %.3f (%.2f and %.2f '
          'times ours)' % (len(held_out), ours, by_gzip, by_xz, by_gzip / ours, by_xz / ours))

    if args.samples:
        with open(args.samples, 'rb') as file:
            samples = re.split(rb'(?:^|\n)--- sample \d+\n', file.read())[1:]
        if not samples:
            sys.exit('quickstart_report: %s holds no "--- sample N"' % args.samples)
        good = sum(follows_form(s.decode('utf-8', 'replace')) for s in samples)
        repeat = longest_repeat(samples, read_tokens(os.path.join(args.data, 'train.bin')))
        print('%d of %d samples have the form of entries; the longest repeats %s bytes of training '
              'text' % (good, len(samples), repeat or 'less than 32'))


if __name__ == '__main__':
    main()
