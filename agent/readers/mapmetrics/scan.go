package mapmetrics

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/bytecode/values/series"
)

// The bounds of a batch. The kernel copies a whole bucket of a hash at once, for which a batch may grow.
const (
	batchBytes, mostBatchBytes = 64 << 10, 16 << 20
	mostBatch                  = 512
	// mostInterrupted bounds how often a batch is read again in one scan.
	mostInterrupted = 1000
)

// sample is a series of each value of an entry.
type sample struct {
	labels []string
	values []float64
}

// scan reads all entries of a map, slice by slice.
type scan struct {
	// most is how many sets of labels there may be, and node has names.
	most int
	node *node

	cpus   int
	stride int
	batch  batch
	// places are those of sets of labels in sums, by the text of the labels.
	places  map[string]int
	sums    []float64
	labels  []byte
	leftOut int
	// read is how many entries were read, and interrupted how often the kernel asked to be asked again.
	read, interrupted int
	whole             bool
}

// advance reads until then, and at least one batch. It reports whether there is more.
func (s *scan) advance(m *ebpf.Map, r *series.Reader, until time.Time) (more bool, err error) {
	if s.places == nil {
		if err := s.prepare(m); err != nil {
			return false, err
		}
	}
	for !s.whole {
		n, err := s.batch.next(m)
		switch {
		case errors.Is(err, unix.ENOENT):
			s.whole = true
		case errors.Is(err, unix.ENOSPC) && s.batch.grow(), errors.Is(err, unix.EINTR) && s.interrupted < mostInterrupted:
			s.interrupted++
			continue
		case errors.Is(err, unix.ENOSPC):
			return false, fmt.Errorf("entries with keys of one hash take more than the %d MiB that are read at once", mostBatchBytes>>20)
		case err != nil:
			return false, fmt.Errorf("read entries: %w", err)
		}
		for i := range n {
			s.add(r, s.batch.key(i), s.batch.value(i))
		}
		// A trie begins anew where the entry was deleted that was read last.
		if s.read += n; s.read > 2*int(m.MaxEntries()) {
			s.whole = true
		}
		if !time.Now().Before(until) {
			break
		}
	}
	return !s.whole, nil
}

// prepare makes room for a batch.
func (s *scan) prepare(m *ebpf.Map) error {
	s.places, s.cpus, s.stride = map[string]int{}, 1, int(m.ValueSize())
	if series.IsPerCPU(m.Type()) {
		cpus, err := plain.Of(ebpf.PossibleCPU())
		if err != nil {
			return fmt.Errorf("count processors: %w", err)
		}
		s.cpus, s.stride = cpus, (s.stride+7)&^7
	}
	s.batch = newBatch(int(m.KeySize()), s.cpus*s.stride, int(m.MaxEntries()))
	return nil
}

// add adds an entry to the series of its labels.
func (s *scan) add(r *series.Reader, key, value []byte) {
	if !r.EachCPU {
		if to := s.sumsOf(r, key, 0); to != nil {
			for cpu := range s.cpus {
				r.Add(to, key, value[cpu*s.stride:])
			}
		}
		return
	}
	for cpu := range s.cpus {
		if to := s.sumsOf(r, key, cpu); to != nil {
			r.Add(to, key, value[cpu*s.stride:])
		}
	}
}

// sumsOf are the sums of a key's labels; nil where there are as many sets of labels as there may be.
func (s *scan) sumsOf(r *series.Reader, key []byte, cpu int) []float64 {
	s.labels = r.Append(s.labels[:0], key, cpu, s.node)
	width := r.Width()
	at, known := s.places[string(s.labels)]
	if !known {
		if at = len(s.places); at >= s.most {
			s.leftOut++
			return nil
		}
		s.places[string(s.labels)] = at
		s.sums = append(s.sums, make([]float64, width)...)
	}
	return s.sums[at*width : (at+1)*width]
}

// samples are what a whole scan found.
func (s *scan) samples() []sample {
	if len(s.places) == 0 {
		return nil
	}
	width := len(s.sums) / len(s.places)
	all := make([]sample, len(s.places))
	for text, at := range s.places {
		all[at] = sample{series.Split(text), s.sums[at*width : (at+1)*width]}
	}
	return all
}

// batch is room for some entries of a map.
type batch struct {
	keySize, valueSize, most int
	keys, values             []byte
	// from and to are where the kernel begins and ends; begun reports that from says so.
	from, to []byte
	begun    bool
}

// newBatch returns room for a number of entries that depends on their size.
func newBatch(keySize, valueSize, most int) batch {
	b := batch{keySize: keySize, valueSize: valueSize, most: most, from: make([]byte, max(keySize, 4)), to: make([]byte, max(keySize, 4))}
	b.size(max(1, min(batchBytes/(keySize+valueSize), mostBatch, most)))
	return b
}

func (b *batch) size(n int) {
	b.keys, b.values = make([]byte, n*b.keySize), make([]byte, n*b.valueSize)
}

// grow doubles the room, for a bucket that does not fit, and reports whether that helps and is allowed.
func (b *batch) grow() bool {
	n := len(b.keys) / b.keySize
	if n > b.most || 2*n*(b.keySize+b.valueSize) > mostBatchBytes {
		return false
	}
	b.size(2 * n)
	return true
}

func (b *batch) key(i int) []byte   { return b.keys[i*b.keySize : (i+1)*b.keySize] }
func (b *batch) value(i int) []byte { return b.values[i*b.valueSize : (i+1)*b.valueSize] }
