package cost

// MostRuns has windows end when so many runs were counted: how many a machine counts in a second depends on what else it does.
func (c *Clock) MostRuns(n uint64) { c.most = n }
