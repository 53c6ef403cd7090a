#!/usr/bin/env python3
"""Tests of quickstart_report.py."""

import gzip
import io
import json
import math
import os
import random
import sys
import tempfile
import unittest
from contextlib import redirect_stdout

sys.path.insert(0, os.path.join(os.environ.get('TEST_SRCDIR', ''),
                                os.environ.get('TEST_WORKSPACE', ''), 'tools'))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import quickstart_report as report  # noqa: E402

ENTRIES = '''
abet
    v 1: assist or encourage, usually in some wrongdoing
abhor
    v 1: find repugnant; "I loathe that man"; "She abhors cats"
         [syn: {abhor}, {loathe}, {abominate}]
    2: dislike
       strongly
    n 1: one who abhors
abi'''


def write_tokens(path, text):
    with open(path, 'wb') as file:
        file.write(bytes(report.HEADER) + bytes(b for c in text for b in (c, 0)))


class FormTest(unittest.TestCase):
    def test_entries_follow_it(self):
        self.assertTrue(report.follows_form(ENTRIES))

    def test_other_text_does_not(self):
        for good, bad in [('    v 1: find', '    v 2: find'), ('    2: dislike', '    3: dislike'),
                          ('       strongly', '        strongly'), ('    v 1: assist', 'assist'),
                          ('abominate}]', 'abominate]'), ('abominate}]', 'abominate}'),
                          ('    n 1: one', '    one'), ('    2: dislike', '\n    2: dislike')]:
            self.assertIn(good, ENTRIES)
            self.assertFalse(report.follows_form(ENTRIES.replace(good, bad)), bad)
        self.assertFalse(report.follows_form('\nabet'))
        self.assertFalse(report.follows_form(''))


class RepeatTest(unittest.TestCase):
    def test_finds_the_longest(self):
        chooser = random.Random(1)
        text = bytes(chooser.randrange(256) for _ in range(5000))
        for begin, length in [(0, 40), (1234, 77), (4800, 200)]:
            sample = b'before ' + text[begin:begin + length] + b' after'
            self.assertEqual(report.longest_repeat([b'x' * 100, sample], text), length)
        self.assertEqual(report.longest_repeat([b'nothing of it at all'], text), 0)


class WholeReportTest(unittest.TestCase):
    def test_compares_with_gzip_and_counts_samples(self):
        with tempfile.TemporaryDirectory() as folder:
            held_out = ENTRIES.encode() * 50
            write_tokens(folder + '/val.bin', held_out)
            write_tokens(folder + '/train.bin', b'some other text, about other things')
            with open(folder + '/metrics.jsonl', 'w') as file:
                for loss in (3.0, 2 * math.log(2)):
                    print(json.dumps({'eval_loss': loss, 'eval_tokens': len(held_out) - 1}),
                          file=file)
            with open(folder + '/samples.txt', 'w') as file:
                file.write('--- sample 1\n%s\n--- sample 2\nnone\n  at all\n' % ENTRIES)
            sys.argv = ['', '--data=' + folder, '--run=' + folder,
                        '--samples=' + folder + '/samples.txt']
            out = io.StringIO()
            with redirect_stdout(out):
                report.main()
            by_gzip = 8 * len(gzip.compress(held_out, 9)) / len(held_out)
            self.assertIn('bits per byte over %d held-out bytes: 2.000; gzip -9 %.3f, xz -9 ' %
                          (len(held_out), by_gzip), out.getvalue())
            self.assertIn('1 of 2 samples', out.getvalue())
            self.assertIn('less than 32 bytes', out.getvalue())


if __name__ == '__main__':
    unittest.main()
