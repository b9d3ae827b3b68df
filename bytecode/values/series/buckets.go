package series

import (
	"fmt"
	"math"
	"strconv"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/values"
)

// HistogramPrefix begins the names of histograms, as Prefix those of other series: the types of two applications cannot contradict each other.
const HistogramPrefix = "skep_histogram_"

// maxPower is the last bucket of powers of two: no number of 8 bytes is beyond.
const maxPower = 64

// buckets are those of a histogram.
type buckets struct {
	at         values.Field
	number     number
	first, num int
	// bounds are the upper ones, in the unit of the series.
	bounds     []float64
	multiplier float64
}

// shapeBuckets returns what is wrong with the buckets of metrics whatever the map is.
func shapeBuckets(m *v1alpha1.MapMetrics) (all []*values.FieldError) {
	add := func(place, fix, format string, args ...any) { all = append(all, failure(place, fix, format, args...)) }
	b := m.Buckets
	switch isHistogram := m.Type == v1alpha1.MapHistogram; {
	case b == nil && isHistogram:
		add("buckets", "set buckets, or use "+string(v1alpha1.MapGauge), "a histogram has no buckets")
	case b != nil && !isHistogram:
		add("buckets", "remove it, or use type "+string(v1alpha1.MapHistogram), "metrics of type %s have no buckets", m.Type)
	}
	if b == nil {
		return all
	}
	if len(m.Values) > 0 {
		add("values", "name one number in value", "a histogram has one number for each entry")
	}
	last := int32(math.MaxUint16)
	switch b.Type {
	case v1alpha1.BucketsLinear:
	case v1alpha1.BucketsExp2, v1alpha1.BucketsExp2Zero:
		last = maxPower
	default:
		add("buckets.type", fmt.Sprintf("use %s, %s or %s", v1alpha1.BucketsExp2, v1alpha1.BucketsExp2Zero, v1alpha1.BucketsLinear), "type %q is not known", b.Type)
	}
	if b.Min < 0 || b.Min > b.Max || b.Max > last || b.Max-b.Min >= v1alpha1.MaxMapBuckets {
		add("buckets.max", fmt.Sprintf("list at most %d buckets, from min to a max that is not before it, and at most %d", v1alpha1.MaxMapBuckets, last),
			"buckets go from %d to %d", b.Min, b.Max)
	}
	if _, ok := multiplierOf(b); !ok {
		add("buckets.multiplier", "write a number above 0 and up to 10^12, such as \"0.000001\"", "%q is none", b.Multiplier)
	}
	return all
}

// multiplierOf reads the multiplier.
func multiplierOf(b *v1alpha1.MapBuckets) (float64, bool) {
	if b.Multiplier == "" {
		return 1, true
	}
	const least, most = 1e-18, 1e12
	m, err := strconv.ParseFloat(b.Multiplier, 64)
	return m, err == nil && m >= least && m <= most
}

// newBuckets returns how a key says which bucket it is.
func newBuckets(b *v1alpha1.MapBuckets, of Map) (*buckets, *values.FieldError) {
	f, err := values.Find(of.Key, b.Field)
	if err != nil {
		return nil, failure("buckets.field", "name a member of the key", "%v", err)
	}
	n, isNumber := numberOf(f, of.Order)
	if !isNumber {
		return nil, failure("buckets.field", "name a member of the key that is a number", "%s is not a whole number of at most 8 bytes", values.Describe(f.Type))
	}
	if b.Max < b.Min || b.Max-b.Min >= v1alpha1.MaxMapBuckets {
		return nil, failure("buckets.max", fmt.Sprintf("list at most %d buckets", v1alpha1.MaxMapBuckets), "buckets go from %d to %d", b.Min, b.Max)
	}
	n.at = 0
	made := &buckets{at: f, number: n, first: int(b.Min), num: int(b.Max-b.Min) + 1}
	made.multiplier, _ = multiplierOf(b)
	for i := b.Min; i <= b.Max; i++ {
		bound := float64(i)
		switch {
		case b.Type == v1alpha1.BucketsExp2:
			bound = math.Exp2(bound)
		case b.Type == v1alpha1.BucketsExp2Zero && i > 0:
			bound = math.Exp2(bound - 1)
		}
		made.bounds = append(made.bounds, bound*made.multiplier)
	}
	return made, nil
}

// add adds the value of an entry to its bucket, or to the sum behind them. Others are left out.
func (b *buckets) add(to []float64, key []byte, value float64) {
	i := b.number.bits(key[b.at.Offset:b.at.Offset+b.at.Size]) - uint64(b.first)
	if i <= uint64(b.num) {
		to[i] += value
	}
}

// Histogram is one of a set of labels, by what a Reader added: cumulative counts by their upper bounds, the count of all, and the sum.
func (r *Reader) Histogram(from []float64) (counts map[float64]uint64, all uint64, sum float64) {
	counts = make(map[float64]uint64, r.buckets.num)
	for i, bound := range r.buckets.bounds {
		all += uint64(max(from[i], 0))
		counts[bound] = all
	}
	return counts, all, from[r.buckets.num] * r.buckets.multiplier
}
