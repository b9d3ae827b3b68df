package ui

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// How much of the past is kept: of so many nodes, so many windows of the last while, and of each the programs that cost most.
const (
	maxNodes    = 16
	maxWindows  = 120
	maxAge      = 30 * time.Minute
	maxPrograms = 64
)

// window is what programs cost in one window that the agent measured.
type window struct {
	At       time.Time `json:"at"`
	Seconds  float64   `json:"seconds"`
	Programs []sample  `json:"programs"`
	// Rest is the share of the CPU of the programs that are left out.
	Rest float64 `json:"rest,omitempty"`
}

// sample is one program in a window.
type sample struct {
	ID          uint32             `json:"id"`
	Name        string             `json:"name"`
	Application *v1alpha1.Identity `json:"application,omitempty"`
	// Ours reports that it is Skep's.
	Ours bool `json:"ours,omitempty"`
	// Share is the part of one CPU, Rate the runs in a second and Each the nanoseconds of a run.
	Share float64 `json:"share"`
	Rate  float64 `json:"rate"`
	Each  float64 `json:"each"`
}

// history has the windows of the nodes that somebody looked at lately.
type history struct {
	// mu guards nodes.
	mu    sync.Mutex
	nodes *simplelru.LRU[string, []window]
}

func newHistory() *history {
	// It fails for no places alone.
	nodes, _ := simplelru.NewLRU[string, []window](maxNodes, nil)
	return &history{nodes: nodes}
}

// add remembers the newest window of a node, once, and returns those of the last while, the oldest first. Where the node's clock was set
// back, those that lie in its future are dropped.
func (h *history) add(name string, n view.NodeView) []window {
	newest, measured := windowOf(n)
	h.mu.Lock()
	defer h.mu.Unlock()
	known, _ := h.nodes.Get(name)
	if measured && (len(known) == 0 || !known[len(known)-1].At.Equal(newest.At)) {
		known = append(slices.DeleteFunc(slices.Clone(known), func(w window) bool {
			age := newest.At.Sub(w.At)
			return age <= 0 || age > maxAge
		}), newest)
		known = known[max(0, len(known)-maxWindows):]
		h.nodes.Add(name, known)
	}
	return append([]window{}, known...)
}

// windowOf is the newest window of a node; false where none measured.
func windowOf(n view.NodeView) (w window, measured bool) {
	for _, p := range n.Programs {
		if p.Cost != nil && p.Cost.Measured.After(w.At) {
			w.At, w.Seconds, measured = p.Cost.Measured.Time, p.Cost.WindowSeconds, true
		}
	}
	for _, p := range n.Programs {
		if p.Cost != nil && p.Cost.Measured.Time.Equal(w.At) {
			w.Programs = append(w.Programs, sample{ID: p.ID, Name: cmp.Or(p.Name, p.Type), Application: p.Application,
				Ours: p.Application != nil || p.Chain, Share: p.Cost.CPUShare(), Rate: p.Cost.RunsPerSecond(), Each: p.Cost.NanosecondsPerRun()})
		}
	}
	slices.SortStableFunc(w.Programs, func(a, b sample) int { return cmp.Compare(b.Share, a.Share) })
	if len(w.Programs) > maxPrograms {
		for _, p := range w.Programs[maxPrograms:] {
			w.Rest += p.Share
		}
		w.Programs = w.Programs[:maxPrograms]
	}
	return w, measured
}
