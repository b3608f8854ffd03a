package main

import (
	"time"

	"github.com/opmux/opmux/device"
)

// yardstick is the process that measures what bounds the engines, with as many threads and in the same rounds: the
// CPU device's own loops that do nothing but read memory or multiply.
const yardstick = "limits"

type limits struct {
	engine // none
	probe  device.Probe
}

func openLimits(j *job) (engine, error) {
	mem, err := newMemory(j.Threads)
	if err != nil {
		return nil, err
	}
	p, err := mem.NewProbe()
	return &limits{probe: p}, err
}

func (l *limits) ran() ran { return ran{Cache: l.probe.Cache()} }

// measure runs about so much of a unit, "read" in bytes or arithmetic in operations, and returns how much it was.
func (l *limits) measure(unit string, amount float64) float64 {
	if unit == unitRead {
		return float64(l.probe.Read(int64(amount)))
	}
	return l.probe.Multiply(unit, amount)
}

const unitRead = "read"

// meter asks a yardstick for rates.
type meter struct {
	*worker
	amount map[string]float64 // by unit: that fills a turn
}

// meters are the yardsticks of a run, by the number of their threads.
type meters map[int]*meter

// of returns the yardstick of so many threads. It is started once: filling its memory takes a while.
func (m meters) of(threads int) (*meter, error) {
	if m[threads] == nil {
		w, err := start(job{Engine: yardstick, Threads: threads})
		if err != nil {
			return nil, err
		}
		m[threads] = &meter{w, map[string]float64{}}
	}
	return m[threads], nil
}

func (m meters) stop() {
	for _, w := range m {
		w.stop()
	}
}

// rate measures a unit for about as long as a turn; 0 if the machine has no loop for it.
func (m *meter) rate(unit string, turn time.Duration) (float64, error) {
	amount, known := m.amount[unit]
	if !known {
		amount = 64 << 20
	}
	r, err := m.exchange(&request{Unit: unit, Amount: amount})
	if err != nil || r.Amount == 0 {
		return 0, err
	}
	rate := r.Amount / r.Took.Seconds()
	m.amount[unit] = rate * turn.Seconds()
	if !known { // that told how much fills a turn
		return m.rate(unit, turn)
	}
	return rate, nil
}
